"""The event stream: what can be found in the cache, told to the outside.

Per block: `Stored` when a block gets a key, `Removed` when it loses one, nothing when keys move from block to block. Who adds
and subtracts them knows how many blocks answer each key.

A key after n tokens names as parent a shorter prefix of the same text that is resident in its group at that moment, so it was
announced before; without one it names none, the root. The event carries the tokens from the parent's end to n, as one
"block" of that many tokens, so tokens = hashes x block size by construction. The parent of a full append-only block is
the end of the block before it (its writer's own, hence resident); that of a partial or sparse entry is the nearest one.
Neighbours in one text share an event.
"""

from __future__ import annotations

from typing import cast

from kvproof.spec.lineage import Lineage, Path
from kvproof.spec.records import Cleared, Event, Removed, Stored


class EventLog:
    """Events since the last `drain`, in order."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._group = self._size = 0
        self._parent: Lineage | None = None
        self._hashes: list[Lineage] = []  # the run of neighbours that may still grow; empty where there is none
        self._tokens: list[int] = []

    def stored(self, group: int, path: Path, start: int, stop: int) -> None:
        """The prefix of `stop` tokens can be found; its parent is the one of `start` tokens, the root where that is 0."""
        parent = path[start] if start else None
        hashes = self._hashes
        if not (hashes and parent is hashes[-1] and group == self._group and stop - start == self._size):
            self._flush()
            self._group, self._size, self._parent, hashes = group, stop - start, parent, self._hashes
        hashes.append(path[stop])
        self._tokens += tokens_between(path, start, stop)

    def removed(self, group: int, lineage: Lineage) -> None:
        self._flush()
        self._events.append(Removed(group, (lineage,)))

    def cleared(self) -> None:
        self._flush()
        self._events.append(Cleared())

    def drain(self) -> list[Event]:
        self._flush()
        events, self._events = self._events, []
        return events

    def _flush(self) -> None:
        if self._hashes:
            stored = Stored(self._group, tuple(self._hashes), self._parent, tuple(self._tokens), self._size)
            self._events.append(stored)
            self._hashes, self._tokens = [], []


def tokens_between(path: Path, start: int, stop: int) -> list[int]:
    """The tokens at positions [start, stop) of a text."""
    return cast("list[int]", [path[n].token for n in range(start + 1, stop + 1)])
