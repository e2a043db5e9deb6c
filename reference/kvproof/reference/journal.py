"""What the engine did to its pool, operation by operation. Off unless asked for: then a step pays nothing for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvproof.spec.lineage import Lineage

if TYPE_CHECKING:
    from kvproof.reference.pool import Pool


@dataclass(slots=True)
class Entry:
    """One operation, as the pool stands right after it. Field by field what `Op` of an audit target says; a table that only
    loses slots is an allocation for no tokens."""

    kind: str  # allocate, free, copies_out, drain, reset or other
    request: str | None = None
    start: int = 0
    stop: int = 0
    hit: int = 0
    failed: bool = False
    taken: list[int] = field(default_factory=list)
    hits: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    tables: dict[str, list[list[int]] | None] = field(default_factory=dict)
    copies: list[tuple[int, int]] = field(default_factory=list)
    refs: dict[int, int] = field(default_factory=dict)
    keys: list[tuple[int, list[tuple[int, Lineage]]]] = field(default_factory=list)
    deferred: list[tuple[int, list[int]]] = field(default_factory=list)
    demand: int | None = None
    free_blocks: int = 0


class Journal:
    """Collects what an operation touches, and the operations.

    touched: blocks whose reference count changed. taken: blocks acquired, in order. rekeyed: each change of a block's keys,
    with all of them right after it as (group, name).
    """

    def __init__(self, *, on: bool = False) -> None:
        self.on = on
        self.entries: list[Entry] = []
        self.touched: set[int] = set()
        self.rekeyed: list[tuple[int, list[tuple[int, Lineage]]]] = []
        self.taken: list[int] = []

    def close(self, entry: Entry, pool: Pool) -> None:
        """The operation is over: note how the pool stands, and begin the next one."""
        entry.taken = self.taken
        entry.refs = {block: pool.refs[block] for block in sorted(self.touched)}
        entry.keys = self.rekeyed
        entry.free_blocks = pool.free
        self.entries.append(entry)
        self.touched, self.rekeyed, self.taken = set(), [], []

    def drain(self) -> list[Entry]:
        entries, self.entries = self.entries, []
        return entries
