"""What a KV connector does to the engine: loads from outside, ordered with a step or not, loads that fail, and saves.

A load brings the append-only blocks after the local hit and one state per state group, for the first `stop` tokens of a
request. Without order it runs beside the steps, on blocks that no step uses, and nobody finds them before it ended well. With
order it is part of the request's first step, before the forward pass, and its names are published on credit; if it fails, the
step that it was in is known to have failed when it completes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvproof.reference.journal import Entry
from kvproof.reference.lookup import Hit
from kvproof.reference.sequence import Sequence, Status
from kvproof.spec.errors import KvproofError
from kvproof.spec.geometry import Kind

if TYPE_CHECKING:
    from kvproof.reference.scheduler import Scheduler


@dataclass(slots=True)
class Load:
    """An outside write of tokens [start, stop) of a request. blocks: per group, what it fills. void: its bytes belong to a
    cache that was reset, and will not be used."""

    sequence: Sequence
    start: int
    stop: int
    ordered: bool
    local: Hit
    blocks: list[list[int]]
    void: bool = False


@dataclass(slots=True)
class Save:
    """Blocks of a finished request that a connector still reads. last_step: newest step that used them."""

    request: str
    blocks: list[int]
    last_step: int


class Connector:
    """Loads and saves of one scheduler. started: loads since the last `take_started`, for who carries them out."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.loads: dict[str, Load] = {}
        self.saves: dict[int, Save] = {}
        self.started: list[Load] = []
        self.jobs = 0

    # ------------------------------------------------------------------------------------------------------- loads

    def offer(self, sequence: Sequence, hit: Hit) -> Load | None:
        """The load that beats a local hit, if the outside has more. Of the hit it leaves the full append-only blocks."""
        lookup = self.scheduler.lookup
        stop = min(sequence.extras.outside, sequence.known - 1)
        stop -= stop % lookup.grain
        if stop <= hit.length:
            return None
        size = next((group.block_size for group in lookup.groups if group.kind is Kind.APPEND_ONLY), hit.length or 1)
        start = hit.length - hit.length % size
        tables = [
            table[: start // size] if group.kind is Kind.APPEND_ONLY else []
            for group, table in zip(lookup.groups, hit.tables, strict=True)
        ]
        local = Hit(start, hit.junction, tables, True)
        return Load(sequence, start, stop, sequence.extras.ordered, local, [])

    def begin(self, load: Load) -> bool:
        """Start a load that is not ordered with the steps, if the pool has room. The request waits for it."""
        scheduler, sequence = self.scheduler, load.sequence
        demand = scheduler.coordinator.demand(sequence, load.stop, load.stop, load.local, 0, loaded=load.stop)
        if demand > scheduler.pool.free:
            scheduler.note_failed(sequence, load.start, load.stop, load.start, demand)
            return False
        held = scheduler.coordinator.admit(sequence, load.local, None)
        self.seat(load)
        sequence.status = Status.LOADING
        self.loads[sequence.id] = load
        entry = Entry("begin_load", sequence.id, load.start, load.stop, load.start, demand=demand, hits=held)
        scheduler.note_table(entry, sequence)
        return True

    def seat(self, load: Load) -> None:
        """Take the blocks that a load fills."""
        load.blocks = self.scheduler.coordinator.seat_load(load.sequence, load.stop)
        self.started.append(load)

    def end(self, request_id: str, succeeded: bool) -> None:
        """An unordered load is over. Its request runs on, or computes the tokens itself. Raises KvproofError for others."""
        scheduler, load = self.scheduler, self.loads.pop(request_id, None)
        if load is None:
            raise KvproofError(f"no load runs for {request_id}: name a request that `loads` lists")
        sequence = load.sequence
        if sequence.status is Status.DEAD:
            scheduler.release(sequence, kind="end_load")
            return
        if load.void or not succeeded:
            self.give_up(sequence)
            scheduler.requeue(sequence, kind="end_load")
            return
        sequence.status = Status.RUNNING
        scheduler.running.append(sequence)
        scheduler.coordinator.register_rows(sequence, load.start, load.stop, None)
        scheduler.coordinator.register_states(sequence, load.stop, None)
        scheduler.note_table(Entry("end_load", request_id, load.start, load.stop), sequence)

    def take_started(self) -> list[Load]:
        started, self.started = self.started, []
        return started

    def spoil(self, load: Load) -> None:
        """A load that was part of a step failed. What was read from it, and what was computed from that, is void: names
        go, and whoever holds any of it computes again; samples in flight are dropped. O(steps in flight, live tables)."""
        scheduler, names = self.scheduler, load.sequence.path
        void = {block for blocks in load.blocks for block in blocks}
        for flight in scheduler.flights_from(load):
            void.update(copy.dst for copy in flight.copies if copy.src in void)
            for block, name in flight.credit:
                if name.length > load.start and names[min(name.length, load.stop)] is name.prefix(min(name.length, load.stop)):
                    void.add(block)
                    if name in scheduler.pool.keys[block]:
                        scheduler.pool.retract(block, name)
        self.give_up(load.sequence)
        victims = [s for s in scheduler.sequences.values() if s is load.sequence or not void.isdisjoint(s.blocks())]
        for victim in sorted(victims, key=lambda s: s.rank, reverse=True):
            scheduler.requeue(victim, kind="spoil")

    @staticmethod
    def give_up(sequence: Sequence) -> None:
        """The outside has nothing for this request any more."""
        sequence.extras = replace(sequence.extras, outside=0)

    def void_all(self) -> None:
        """The cache was reset: what loads still bring belongs to the old one."""
        for load in self.loads.values():
            load.void = True

    # ------------------------------------------------------------------------------------------------------- saves

    def hand_over(self, sequence: Sequence) -> int:
        """A finished request's blocks pass to a job that saves them. The job's number."""
        self.jobs += 1
        self.saves[self.jobs] = Save(sequence.id, sequence.blocks(), sequence.last_step)
        sequence.tables = [[] for _ in sequence.tables]
        entry = Entry("hand_over", sequence.id)
        entry.tables[sequence.id] = None
        self.scheduler.note(entry)
        return self.jobs

    def end_save(self, job: int) -> None:
        """A save is done: its blocks go back. Raises KvproofError where no such job runs."""
        save = self.saves.pop(job, None)
        if save is None:
            raise KvproofError(f"no job {job} is saving: name one that `saves` lists")
        self.scheduler.give_back(save.blocks, save.last_step, Entry("end_save", save.request))

    def blocks(self) -> Iterable[int]:
        """All blocks that saves hold, one by one."""
        return (block for save in self.saves.values() for block in save.blocks)
