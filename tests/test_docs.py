"""docs/findings.md and the committed baselines say the same."""

from __future__ import annotations

import re
from pathlib import Path

from kvproof.audit.baseline import load_baseline

ROOT = Path(__file__).parent.parent
DOCS = (ROOT / "docs" / "findings.md").read_text()
ROW = re.compile(r"^\| (F\d+) \| .*? \| .*? \| (.*?) \|$", re.MULTILINE)


def test_the_table_lists_the_releases_of_each_finding() -> None:
    releases: dict[str, set[str]] = {}
    for path in (ROOT / "tests" / "real_vllm").glob("baseline-*.json"):
        for entry in load_baseline(path).accepted:
            label, _, _ = entry.reason.partition(":")
            assert f"### {label}: " in DOCS, f"{path.name}: {entry.reason!r} names no heading of docs/findings.md"
            releases.setdefault(label, set()).add(path.stem.removeprefix("baseline-").removesuffix(".0"))
    table = {label: set(listed.split()) for label, listed in ROW.findall(DOCS)}
    assert {label: listed for label, listed in table.items() if label not in ("F13", "F14")} == releases
