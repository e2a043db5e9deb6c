"""What is committed makes sense on any machine: no registry, no local path, and the README's commands exist."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Written in halves, so that this file passes its own test.
FORBIDDEN = [
    "".join(halves)
    for halves in (
        ("pypi.", "org"),
        ("pythonhosted.", "org"),
        ("download.", "pytorch.org"),
        ("conda.", "anaconda.org"),
        ("/wor", "k/"),
        ("/roo", "t/"),
        ("/hom", "e/"),
        ("/opt/", "wheels"),
        ("../sha", "red"),
    )
]


def committed_files() -> list[Path]:
    """Tracked files and those that a `git add .` would track."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [path for name in listing.split("\0") if name and (path := ROOT / name).is_file()]


def forbidden_words(text: str) -> list[str]:
    return [word for word in FORBIDDEN if word in text]


def commands_of(markdown: str) -> set[str]:
    """The targets of every `make <target>` inside code blocks and code spans."""
    code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", markdown, re.DOTALL))
    return set(re.findall(r"\bmake ([a-z][a-z-]*)", code))


def test_no_file_names_a_registry_or_a_local_path() -> None:
    files = committed_files()
    assert ROOT / "pyproject.toml" in files
    found = {str(path.relative_to(ROOT)): forbidden_words(path.read_text(errors="replace")) for path in files}
    assert {name: words for name, words in found.items() if words} == {}


def test_forbidden_words_are_seen() -> None:
    assert all(forbidden_words(f"see {word}x") == [word] for word in FORBIDDEN)


def test_every_make_command_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"fuzz", "test", "test-gpu", "lint", "bench"} <= targets
    assert commands_of((ROOT / "README.md").read_text()) <= targets


def test_commands_are_read_from_code_only() -> None:
    markdown = "make sure that `make fuzz TARGET=vllm` runs\n```sh\nmake test-gpu\n```\n"
    assert commands_of(markdown) == {"fuzz", "test-gpu"}


def test_no_test_folder_shadows_vllm() -> None:
    assert [path for path in (ROOT / "tests").rglob("vllm") if path.is_dir()] == []
