"""Deferred frees: references that end when a step completes, because something may use the blocks until then."""

from __future__ import annotations

from collections import deque

from kvproof.reference.pool import Pool


class Fences:
    """Entries of a step number and blocks, one reference each, in the order of the numbers."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.entries: deque[tuple[int, list[int]]] = deque()

    def defer(self, step: int, blocks: list[int]) -> None:
        """The references end when `step` is completed."""
        self.entries.append((step, blocks))

    def drain(self, completed: int) -> list[int]:
        """End all references whose step is completed. The blocks, in order."""
        drained: list[int] = []
        while self.entries and self.entries[0][0] <= completed:
            drained += self.entries.popleft()[1]
        self.pool.drop_all(drained)
        return drained
