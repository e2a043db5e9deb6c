"""The block pool: plain integers in arrays, a free list threaded through them, and the index of what is cached.

A block is an int. Block 0 is the null block and at the same time the anchor of the free list, so it is never handed out.
Nothing here takes time proportional to the pool, except `clear`, which takes time proportional to the keys.

Order of reuse: blocks without keys first, last freed first; then blocks with keys, first freed first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvproof.reference.events import EventLog
from kvproof.reference.journal import Journal
from kvproof.spec.errors import KvproofError
from kvproof.spec.lineage import Lineage, Path

Found = Mapping[int, None]  # blocks in the order in which they were published
NOTHING: Found = {}


class PoolError(KvproofError):
    """The engine misused its own pool: a bug in the engine, never in what it was asked to do."""


class Pool:
    """`num_blocks` blocks, the null block included.

    refs: reference count of each block. free: length of the free list. group: the group that a block's keys belong to.
    keys: the names of each block in the index, none where it is not cached. index: per group, name -> blocks.
    """

    def __init__(self, num_blocks: int, groups: int, unit: int, events: EventLog, journal: Journal) -> None:
        self.refs = [0] * num_blocks
        self.free = num_blocks - 1
        self.unit = unit
        self.events = events
        self.journal = journal
        self.group = [0] * num_blocks
        self.keys: list[tuple[Lineage, ...]] = [()] * num_blocks
        self.index: list[dict[Lineage, dict[int, None]]] = [{} for _ in range(groups)]
        self._next: list[int] = [*range(1, num_blocks), 0]
        self._prev: list[int] = [num_blocks - 1, *range(num_blocks - 1)]

    # -------------------------------------------------------------------------------------------------- references

    def take(self) -> int:
        """The block that comes next for reuse, with its first reference and without its keys. Raises PoolError if none."""
        block = self._next[0]
        if not block:
            raise PoolError("the pool is empty: ask for the demand before taking blocks")
        self._unlink(block)
        if self.keys[block]:
            self.unpublish(block)
        self.refs[block] = 1
        if self.journal.on:
            self.journal.taken.append(block)
            self.journal.touched.add(block)
        return block

    def hold(self, block: int) -> None:
        """One more reference."""
        if not self.refs[block]:
            self._unlink(block)
        self.refs[block] += 1
        if self.journal.on:
            self.journal.touched.add(block)

    def drop(self, block: int) -> None:
        """One reference less; the last one frees the block. Raises PoolError where there is none."""
        if self.refs[block] < 1:
            raise PoolError(f"block {block} is dropped and has no reference: somebody dropped it twice")
        self.refs[block] -= 1
        if not self.refs[block]:
            self._link(block)
        if self.journal.on:
            self.journal.touched.add(block)

    def drop_all(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.drop(block)

    # -------------------------------------------------------------------------------------------------------- keys

    def find(self, group: int, lineage: Lineage) -> Found:
        """The blocks that a group knows under this name."""
        return self.index[group].get(lineage, NOTHING)

    def publish(self, block: int, group: int, path: Path, length: int, base: int) -> None:
        """Name a block after the first `length` tokens of a text. base: preferred end of the parent, see `events`."""
        lineage = path[length]
        self.group[block] = group
        self.keys[block] = (*self.keys[block], lineage)
        self.index[group].setdefault(lineage, {})[block] = None
        self.events.stored(group, path, self.parent_end(group, path, base), length)
        if self.journal.on:
            self._note_keys(block)

    def promote(self, block: int, group: int, path: Path, length: int, base: int) -> None:
        """`publish` a longer name in place of the shorter ones, which never come back to this block."""
        self._strip(block)
        self.publish(block, group, path, length, base)

    def parent_end(self, group: int, path: Path, base: int) -> int:
        """The longest prefix of at most `base` tokens that is resident in the group, 0 for the root."""
        index = self.index[group]
        while base > 0 and path[base] not in index:
            base -= self.unit
        return base

    def retract(self, block: int, lineage: Lineage) -> None:
        """Take one name from a block."""
        self.keys[block] = tuple(key for key in self.keys[block] if key is not lineage)
        self._forget(block, lineage)
        self.events.removed(self.group[block], lineage)
        if self.journal.on:
            self._note_keys(block)

    def unpublish(self, block: int) -> None:
        """Take all names from a block."""
        self._strip(block)
        if self.journal.on:
            self._note_keys(block)

    def move_keys(self, source: int, target: int) -> None:
        """Another block has the content now. No event: what can be found stays the same."""
        for lineage in self.keys[source]:
            self._forget(source, lineage)
            self.index[self.group[source]].setdefault(lineage, {})[target] = None
        self.keys[target], self.keys[source] = self.keys[source], ()
        self.group[target] = self.group[source]
        if self.journal.on:
            self._note_keys(source)
            self._note_keys(target)

    def clear(self) -> None:
        """Take all names from all blocks."""
        for index in self.index:
            for found in index.values():
                for block in found:
                    self.keys[block] = ()
                    if self.journal.on:
                        self._note_keys(block)
            index.clear()
        self.events.cleared()

    def _strip(self, block: int) -> None:
        for lineage in self.keys[block]:
            self._forget(block, lineage)
            self.events.removed(self.group[block], lineage)
        self.keys[block] = ()

    def _note_keys(self, block: int) -> None:
        self.journal.rekeyed.append((block, [(self.group[block], lineage) for lineage in self.keys[block]]))

    def _forget(self, block: int, lineage: Lineage) -> None:
        index = self.index[self.group[block]]
        found = index[lineage]
        del found[block]
        if not found:
            del index[lineage]

    # --------------------------------------------------------------------------------------------------- free list

    def _link(self, block: int) -> None:
        """To the end of the free list, or to its front where the block has no keys."""
        after, before = (0, self._prev[0]) if self.keys[block] else (self._next[0], 0)
        self._next[before] = self._prev[after] = block
        self._prev[block], self._next[block] = before, after
        self.free += 1

    def _unlink(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        self._next[before], self._prev[after] = after, before
        self.free -= 1

    def free_list(self) -> list[int]:
        """Free blocks in order of reuse, walked along the links. O(free blocks): for observers."""
        blocks: list[int] = []
        block = self._next[0]
        while block and len(blocks) <= len(self.refs):
            blocks.append(block)
            block = self._next[block]
        return blocks
