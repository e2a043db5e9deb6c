"""Accepted findings: known, explained, replayable. Only what is not among them makes a run fail.

An entry names a check and an exact signature, never a pattern, the reason why it is accepted, and a case that shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from kvproof.audit.case import FORMAT, BadInput, Case, checked, decode, load, pretty, read
from kvproof.audit.checks import CHECKS
from kvproof.audit.session import Identity


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """case: the case itself, or the path of its file relative to the baseline."""

    check: str
    signature: str
    reason: str
    case: Case | str

    @property
    def identity(self) -> Identity:
        return self.check, self.signature


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    accepted: tuple[Entry, ...] = ()

    @property
    def identities(self) -> dict[Identity, Entry]:
        return {entry.identity: entry for entry in self.accepted}


def load_baseline(path: Path) -> Baseline:
    baseline = decode(read(path), Baseline, path, "write it again with `--baseline FILE --accept REASON`")
    if baseline.format != FORMAT:
        raise BadInput(f"{path}: baseline format {baseline.format}; this kvproof reads format {FORMAT}: write it again")
    for index, entry in enumerate(baseline.accepted):
        where = f"{path}: $.accepted[{index}]"
        if entry.check not in CHECKS:
            raise BadInput(f"{where}: no check is named {entry.check!r}: `kvproof explain` lists them")
        if not entry.reason.strip():
            raise BadInput(f"{where}: no reason: say why {entry.check} is accepted here")
        if case_in(entry, path).finding.identity != entry.identity:
            raise BadInput(f"{where}: its case shows another finding: copy check and signature from the case")
    return baseline


def case_in(entry: Entry, path: Path) -> Case:
    """The case of an entry of the baseline at `path`."""
    if isinstance(entry.case, str):
        return load(path.parent / entry.case)
    return checked(entry.case, path)


def accept(path: Path, cases: list[Case], reason: str) -> None:
    """Adds cases to the baseline at `path`, which is made if it is not there."""
    old = load_baseline(path) if path.exists() else Baseline(FORMAT)
    entries = old.identities
    for case in cases:
        entries.setdefault(case.finding.identity, Entry(*case.finding.identity, reason, case))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pretty(Baseline(FORMAT, tuple(entries[key] for key in sorted(entries)))))


def gone(baseline: Baseline, path: Path, seen: Collection[Identity], shows: Callable[[Case], bool]) -> list[Entry]:
    """Entries that no longer occur: not among what this run saw, and `shows` denies their case."""
    return [entry for entry in baseline.accepted if entry.identity not in seen and not shows(case_in(entry, path))]
