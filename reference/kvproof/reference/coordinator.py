"""Blocks of a sequence over all groups: how many it needs, taking them, naming them, giving them back.

An append-only table has a block for every token. A state table has one for the last computed token, and until the steps
that used them are processed also for older ones; all other slots are null. The state after n tokens sits in slot
(n - 1) // block size, so a chunk [start, stop) reads slot (start - 1) // B and writes slot (stop - 1) // B.
"""

from __future__ import annotations

from kvproof.reference.lookup import Hit
from kvproof.reference.pool import Pool
from kvproof.reference.sequence import Sequence
from kvproof.reference.staging import Share, Staging
from kvproof.spec.geometry import Geometry, Group, Kind
from kvproof.spec.records import Checkpoint


class Coordinator:
    """All groups of one geometry over one pool."""

    def __init__(self, pool: Pool, geometry: Geometry) -> None:
        self.pool = pool
        self.geometry = geometry
        self.append_only = [group for group in geometry.groups if group.kind is Kind.APPEND_ONLY]
        self.states = geometry.states
        self.unit = geometry.unit
        self.fine = geometry.fine
        self.zeroing = bool(self.states)  # where kinds share a pool, new rows may lie on bytes that are no numbers

    # ------------------------------------------------------------------------------------------------------ taking

    def demand(self, sequence: Sequence, start: int, stop: int, hit: Hit | None, exported: int, loaded: int = 0) -> int:
        """Free blocks that it takes to hold a hit and to have slots for tokens up to `stop`; cached ones that the hit
        revives count too. loaded: how many tokens an outside load brings before `start`, 0 for none."""
        tables = sequence.tables if hit is None else hit.tables
        need = 0
        for group in self.append_only:
            need += max(group.blocks_for(stop) - len(tables[group.index]), 0)
        for group in self.states:
            table = tables[group.index]
            need += loaded > 0
            if group.blocks_for(stop) > (group.blocks_for(loaded) or len(table)):
                need += 1 + self.exports(sequence, group.block_size, exported)
            elif hit is None and self.pool.keys[table[-1]]:
                need += 1  # the snapshot
        if hit is not None:
            need += sum(self.ends_inside(hit, group) for group in self.geometry.groups)  # private copies
            need += sum(1 for table in tables for block in table if block and not self.pool.refs[block])
        return need

    @staticmethod
    def ends_inside(hit: Hit, group: Group) -> bool:
        """Whether the hit ends inside a block of the group, which must be copied then."""
        return bool(hit.tables[group.index]) and hit.length % group.block_size > 0

    def admit(self, sequence: Sequence, hit: Hit, staging: Staging | None) -> list[int]:
        """Take over a hit: hold all its blocks, then replace those that it ends inside by private copies. Without a step
        to copy in there must be none. The blocks of the hit."""
        held = [block for table in hit.tables for block in table if block]
        for block in held:
            self.pool.hold(block)
        sequence.tables = hit.tables
        sequence.computed = hit.length
        for group in self.append_only:
            sequence.full = hit.length // group.block_size
        for group in self.states:
            sequence.retired[group.index] = max(len(hit.tables[group.index]) - 1, 0)
        for group in self.geometry.groups:
            if self.ends_inside(hit, group):
                assert staging is not None
                self.redirect(sequence.tables[group.index], staging)
        return held

    def seat_load(self, sequence: Sequence, stop: int) -> list[list[int]]:
        """Blocks that an outside load fills with tokens up to `stop` and the states there, by group. Never zeroed."""
        taken: list[list[int]] = []
        for group in self.geometry.groups:
            table, slots = sequence.tables[group.index], group.blocks_for(stop)
            if group.kind is Kind.STATE:
                table += [0] * (slots - 1)
                sequence.retired[group.index] = slots - 1
            taken.append([self.pool.take() for _ in range(slots - len(table))])
            table += taken[-1]
        sequence.computed = stop
        return taken

    def redirect(self, table: list[int], staging: Staging) -> None:
        """Consumer copy-on-write: the last slot gets a private copy; its hold on the source passes to the copy."""
        source, private = table[-1], self.pool.take()
        self.pool.hold(private)
        table[-1] = private
        staging.copy(source, private)

    def extend(self, sequence: Sequence, start: int, stop: int, exported: int, staging: Staging) -> None:
        """Slots for tokens [start, stop)."""
        for group in self.append_only:
            table, size = sequence.tables[group.index], group.block_size
            for _ in range(len(table), group.blocks_for(stop)):
                block = self.pool.take()
                table.append(block)
                if self.zeroing:
                    staging.zeroes[block] = None
            for slot in range(start // size, (stop - 1) // size + 1):
                staging.fresh.setdefault(table[slot], start)
        for group in self.states:
            table, slot = sequence.tables[group.index], (stop - 1) // group.block_size
            if slot >= len(table):
                export = self.exports(sequence, group.block_size, exported)
                self.advance(table, slot, export)
                if export:
                    staging.fresh[table[slot - 1]] = 0
                    staging.checkpoints.append(Checkpoint(sequence.id, group.index, table[slot - 1], exported))
            elif self.pool.keys[table[slot]]:
                self.snapshot(table[slot], staging)
            staging.fresh[table[slot]] = 0

    def advance(self, table: list[int], slot: int, export: bool) -> None:
        """The running state goes on in a later slot; with `export` the one before it takes a checkpoint."""
        table += [0] * (slot - export - len(table))
        while len(table) <= slot:
            table.append(self.pool.take())

    def exports(self, sequence: Sequence, size: int, position: int) -> bool:
        return position > 0 and self.keeps(sequence, position, size)

    def snapshot(self, source: int, staging: Staging) -> None:
        """Producer copy-on-write: the step overwrites a state that has names; they go to a copy that nobody writes."""
        target = self.pool.take()
        self.pool.hold(source)
        self.pool.move_keys(source, target)
        staging.copy(source, target)

    # ------------------------------------------------------------------------------------------------------ naming

    def register_rows(self, sequence: Sequence, start: int, stop: int, share: Share | None) -> None:
        """Name the append-only blocks that tokens [start, stop) end, all of them known: the full ones, and the one in
        which the prompt has its last unit boundary, until it is full."""
        for group in self.append_only:
            table, size = sequence.tables[group.index], group.block_size
            while (sequence.full + 1) * size <= stop:
                length = (sequence.full + 1) * size
                self.name(sequence, table[sequence.full], group, length, length - size, share)
                sequence.full += 1
            tail = sequence.tail
            if start < tail <= stop and self.fine and tail > sequence.full * size:
                self.name(sequence, table[tail // size], group, tail, tail - self.unit, share)

    def register_states(self, sequence: Sequence, length: int, share: Share | None, exported: bool = False) -> None:
        """Name the states after `length` tokens, where a chunk ended or a checkpoint went. The tokens are known."""
        for group in self.states:
            if self.keeps(sequence, length, group.block_size):
                table = sequence.tables[group.index]
                block = table[-2] if exported else table[(length - 1) // group.block_size]
                self.name(sequence, block, group, length, length - self.unit, share)

    def register_loaded(self, sequence: Sequence, length: int, stop: int, share: Share) -> None:
        """Name the states that an outside load brings in the step itself, where the chunk up to `stop` leaves them alone."""
        for group in self.states:
            if group.blocks_for(stop) > group.blocks_for(length) and self.keeps(sequence, length, group.block_size):
                block = sequence.tables[group.index][group.blocks_for(length) - 1]
                self.name(sequence, block, group, length, length - self.unit, share)

    def name(self, sequence: Sequence, block: int, group: Group, length: int, base: int, share: Share | None) -> None:
        """Publish a block for the first `length` tokens, in place of what it was published for."""
        self.pool.promote(block, group.index, sequence.path, length, base)
        if share is not None:
            share.credit.append((block, sequence.path[length]))

    def keeps(self, sequence: Sequence, length: int, size: int) -> bool:
        """Whether a group of this block size keeps the state after `length` tokens for others."""
        if length in sequence.kept:
            return True
        interval = self.geometry.retention
        if interval is None:
            return length % size == 0
        return interval > 0 and length % interval == 0

    # ------------------------------------------------------------------------------------------------- giving back

    def retire(self, sequence: Sequence) -> list[int]:
        """Null the state slots before the one that the next unprocessed step reads. The blocks that they had."""
        processed = sequence.computed - sequence.in_flight
        dropped = []
        for group in self.states:
            table, end = sequence.tables[group.index], (processed - 1) // group.block_size
            for slot in range(sequence.retired[group.index], end):
                if table[slot]:
                    dropped.append(table[slot])
                    table[slot] = 0
            sequence.retired[group.index] = max(sequence.retired[group.index], end)
        self.pool.drop_all(dropped)
        return dropped
