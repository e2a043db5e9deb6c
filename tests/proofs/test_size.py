"""The proofs are at most as long as the rules that they prove: else they would be what needs a proof."""

from __future__ import annotations

from pathlib import Path

import kvproof.proofs
import kvproof.spec


def lines(folder: str) -> int:
    """Lines that are neither blank nor comments."""
    found = (line.strip() for path in Path(folder).glob("*.py") for line in path.read_text().splitlines())
    return sum(bool(line) and not line.startswith("#") for line in found)


def test_proofs_are_no_longer_than_the_rules() -> None:
    assert lines(kvproof.proofs.__path__[0]) <= lines(kvproof.spec.__path__[0])


def test_blank_lines_and_comments_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("# one\n\nx = 1  # two\n    # three\ny = 2\n")
    assert lines(str(tmp_path)) == 2
