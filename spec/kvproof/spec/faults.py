"""A fault: one violation that was seen. Which checks there are, and how severe each is, stands in audit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """What a broken check costs, worst first."""

    CORRUPTION = "corruption"  # a reader gets wrong bytes
    LEAK = "leak"
    CRASH = "crash"
    STALL = "stall"
    ACCOUNTING = "accounting"  # index and queue disagree; no reader is wrong yet
    EVENT = "event"  # the event stream lies
    WASTE = "waste"


@dataclass(slots=True)
class Fault:
    """One firing of a check.

    what: one sentence with the values. signature: the part of it that stays the same from run to run (no ids, no counts),
    so that equal faults of two runs count once. severity: that of the check unless this instance is known to be milder.
    """

    check: str
    what: str
    signature: str = ""
    severity: Severity | None = None
    step: int = 0
    request: str | None = None
    blocks: tuple[int, ...] = ()
