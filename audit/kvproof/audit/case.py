"""Case files: one finding with all that is needed to see it again, as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar
from zlib import crc32

import msgspec

from kvproof.audit.checks import CHECKS
from kvproof.audit.program import AnyOperation, Program, impossible
from kvproof.audit.session import Finding, Identity
from kvproof.spec.errors import KvproofError
from kvproof.spec.faults import Severity
from kvproof.spec.records import Config

FORMAT = 1
T = TypeVar("T")


class BadInput(KvproofError):
    """Something that the user gave cannot be used. Says what, where and how to mend it. Exit code 2."""


class Found(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The finding that a case is about."""

    check: str
    signature: str
    severity: Severity
    what: str

    @property
    def identity(self) -> Identity:
        return self.check, self.signature


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """format: of this file. target, release: where it was found. geometry, origin: its name and where such sizes occur."""

    format: int
    target: str
    release: str
    geometry: str
    origin: str
    finding: Found
    config: Config
    operations: tuple[AnyOperation, ...]

    @property
    def program(self) -> Program:
        return Program(self.config, self.operations)

    @property
    def name(self) -> str:
        """A file name for it: the check, and the words of the signature."""
        letters = "".join(c if c.isalnum() else " " for c in self.finding.signature.lower())
        words = letters.split()
        more = [f"{crc32(letters.encode()) & 0xFFFF:04x}"] if len(words) > 6 else []
        return "-".join([self.finding.check, *words[:6], *more])


def case_of(target: str, release: str, geometry: str, origin: str, finding: Finding, program: Program) -> Case:
    found = Found(finding.check, finding.signature, finding.severity, finding.what)
    return Case(FORMAT, target, release, geometry, origin, found, program.config, program.operations)


def save(case: Case, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pretty(case))


def pretty(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def load(path: Path) -> Case:
    case = decode(read(path), Case, path, "record it again with `kvproof fuzz`")
    return checked(case, path)


def checked(case: Case, path: Path) -> Case:
    """The case, if this version of kvproof can run it."""
    if case.format != FORMAT:
        raise BadInput(f"{path}: case format {case.format}; this kvproof reads format {FORMAT}: record it again")
    if case.finding.check not in CHECKS:
        raise BadInput(f"{path}: no check is named {case.finding.check!r}: `kvproof explain` lists them")
    if reason := impossible(case.config):
        raise BadInput(f"{path}: $.config: {reason}")
    return case


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}: give the path of a file written by kvproof") from None


def decode(data: bytes, kind: type[T], path: Path, remedy: str) -> T:
    """JSON as a `kind`. Names the line and column, or the field, of what is wrong."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise BadInput(f"{path}: {error}: mend that field or {remedy}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}{place(data)}: not JSON: {error}: mend it or {remedy}") from None


def place(data: bytes) -> str:
    """Line and column of the first JSON error, as `:line:column`."""
    import json

    try:
        json.loads(data)
    except json.JSONDecodeError as error:
        return f":{error.lineno}:{error.colno}"
    except UnicodeDecodeError as error:
        return f":{data.count(10, 0, error.start) + 1}"
    return ""
