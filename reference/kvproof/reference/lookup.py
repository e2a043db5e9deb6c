"""What a new request need not compute: the longest prefix that all groups can answer, and the blocks that answer it."""

from __future__ import annotations

from collections.abc import Callable

from kvproof.reference.pool import Found, Pool
from kvproof.spec.geometry import Geometry, Group, Kind
from kvproof.spec.lineage import Path

Ready = Callable[[int, int], bool]  # whether a block holds its first n tokens before the staged step starts


class Hit:
    """length: tokens that need not be computed. junction: where the append-only hit ends, if beyond that, else 0.
    tables: per group the blocks that answer, 0 in gaps. ready: False where one of them is filled by the step that is being
    staged, too late for this request."""

    __slots__ = ("junction", "length", "ready", "tables")

    def __init__(self, length: int, junction: int, tables: list[list[int]], ready: bool) -> None:
        self.length = length
        self.junction = junction
        self.tables = tables
        self.ready = ready


class Lookup:
    """Prefix lookup over one pool."""

    def __init__(self, pool: Pool, geometry: Geometry) -> None:
        self.pool = pool
        self.unit = geometry.unit
        self.grain = geometry.unit if geometry.fine else geometry.scheduler_block
        self.fine = geometry.fine
        self.groups = geometry.groups

    def find(self, path: Path, ready: Ready) -> Hit:
        """The greatest common hit, at most all tokens but one. O(text / unit) for each group."""
        runs: list[list[tuple[int, Found]]] = []
        longest = len(path) - 1
        for group in self.groups:
            if group.kind is Kind.APPEND_ONLY:
                run = self._run(path, group)
                runs.append(run)
                longest = min(longest, run[-1][0] if run else 0)
        longest -= longest % self.grain
        length = self._common(path, longest)
        tables, all_ready = [], True
        for group in self.groups:
            if group.kind is Kind.APPEND_ONLY:
                table, good = self._rows(runs.pop(0), group, length, ready)
            else:
                table, good = self._state(path, group, length, ready)
            tables.append(table)
            all_ready = all_ready and good
        return Hit(length, longest if longest > length else 0, tables, all_ready)

    def _run(self, path: Path, group: Group) -> list[tuple[int, Found]]:
        """Consecutive blocks from the start of the text, each with the end of what it is known to hold: full blocks, then
        at most one that is known for less. Keys up to the end of the text count: a longer block answers a shorter hit."""
        pool, size, end, known = self.pool, group.block_size, 0, len(path)
        run: list[tuple[int, Found]] = []
        while end + size <= known and (found := pool.find(group.index, path[end + size])):
            end += size
            run.append((end, found))
        if self.fine:
            highest = min(end + size, known + 1) - 1
            for inside in range(highest - highest % self.unit, end, -self.unit):
                if found := pool.find(group.index, path[inside]):
                    run.append((inside, found))
                    break
        return run

    def _common(self, path: Path, length: int) -> int:
        """The greatest length, at most `length`, for which every state group has the exact state."""
        agreed = -1
        while agreed != length:
            agreed = length
            for group in self.groups:
                if group.kind is Kind.STATE:
                    while length and not self.pool.find(group.index, path[length]):
                        length -= self.grain
        return length

    def _rows(self, run: list[tuple[int, Found]], group: Group, length: int, ready: Ready) -> tuple[list[int], bool]:
        """A block that the hit covers fully is shared as it is, even one that this step fills; an inner end is copied."""
        full, inside = divmod(length, group.block_size)
        table = [next(iter(found)) for _, found in run[:full]]
        if not inside:
            return table, True
        block, good = choose(run[full][1], length, ready)
        return [*table, block], good

    def _state(self, path: Path, group: Group, length: int, ready: Ready) -> tuple[list[int], bool]:
        if not length:
            return [], True
        block, good = choose(self.pool.find(group.index, path[length]), length, ready)
        return [0] * ((length - 1) // group.block_size) + [block], good


def choose(found: Found, length: int, ready: Ready) -> tuple[int, bool]:
    """A block that is ready, the oldest one; the oldest one at all where none is."""
    for block in found:
        if ready(block, length):
            return block, True
    return next(iter(found)), False
