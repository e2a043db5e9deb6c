"""Imports point one way: everything may import spec, spec imports the standard library only, audit may import all."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("spec", "reference", "gpu", "proofs", "audit")

# The engine shares records and hashing with the rules, never a policy: else lockstep compares a thing with itself.
SPEC_FOR_REFERENCE = tuple(f"kvproof.spec.{name}" for name in ("records", "geometry", "lineage", "hashing", "errors"))

KVPROOF_FOR = {
    "spec": ("kvproof.spec",),
    "reference": ("kvproof.reference", *SPEC_FOR_REFERENCE),
    "gpu": ("kvproof.gpu", "kvproof.spec"),
    "proofs": ("kvproof.proofs", "kvproof.spec"),
    "audit": ("kvproof",),
}
VLLM_FOR = ("audit", "tests", "benchmarks")


def within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def imported_names(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of each import in a file, at any depth. `from a import b` yields a.b."""
    package = path.relative_to(root).parts[1:-1]  # without the source root: kvproof, spec
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            for alias in node.names:
                yield node.lineno, ".".join((*above, *filter(None, [node.module]), alias.name))


def python_files(root: Path) -> Iterator[Path]:
    for folder in (*PACKAGES, "tests", "benchmarks"):
        yield from sorted((root / folder).rglob("*.py"))


def violations(root: Path) -> list[str]:
    found = []
    for path in python_files(root):
        where = path.relative_to(root)
        package = where.parts[0]
        for line, name in imported_names(path, root):
            if within(name, ("kvproof",)) and not within(name, KVPROOF_FOR.get(package, ("kvproof",))):
                found.append(f"{where}:{line}: {package} must not import {name}")
            elif within(name, ("vllm",)) and package not in VLLM_FOR:
                found.append(f"{where}:{line}: {package} must not import vLLM")
            elif package == "spec" and name.split(".")[0] not in {"kvproof", *sys.stdlib_module_names}:
                found.append(f"{where}:{line}: spec imports the standard library only, not {name}")
    closed = [package for package in PACKAGES if (root / package / "kvproof" / "__init__.py").exists()]
    return found + [f"{package}/kvproof/__init__.py would close the namespace" for package in closed]


def test_imports_point_one_way() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in python_files(ROOT)} >= set(PACKAGES)
    assert violations(ROOT) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("spec/kvproof/spec/a.py", "import z3"),
        ("spec/kvproof/spec/a.py", "from kvproof.reference import pool"),
        ("spec/kvproof/spec/a.py", "def f():\n    import numpy.linalg"),
        ("reference/kvproof/reference/a.py", "from kvproof.spec import actions"),
        ("reference/kvproof/reference/a.py", "from kvproof import gpu"),
        ("reference/kvproof/reference/deep/a.py", "from ...spec.actions import free"),
        ("gpu/kvproof/gpu/a.py", "import kvproof.audit.cli"),
        ("gpu/kvproof/gpu/a.py", "from vllm.v1.core import kv_cache_utils"),
        ("proofs/kvproof/proofs/a.py", "import kvproof.reference"),
        ("audit/kvproof/__init__.py", ""),
    ],
)
def test_a_bad_import_is_reported(tmp_path: Path, module: str, source: str) -> None:
    path = tmp_path / module
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert len(violations(tmp_path)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("spec/kvproof/spec/a.py", "import dataclasses\nfrom . import records\nfrom .records import Step"),
        ("reference/kvproof/reference/a.py", "from kvproof.spec.records import Key\nfrom kvproof.spec import lineage"),
        ("audit/kvproof/audit/a.py", "import vllm, kvproof.reference, rich"),
    ],
)
def test_a_good_import_is_not(tmp_path: Path, module: str, source: str) -> None:
    path = tmp_path / module
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert violations(tmp_path) == []
