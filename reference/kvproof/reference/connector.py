"""What a KV connector does to the engine: loads from outside, ordered with a step or not, loads that fail, and saves.

A load brings the append-only blocks after the local hit and one state per state group, for the first `stop` tokens of a
request. Without order it runs beside the steps, on blocks that no step uses, and nobody finds them before it ended well. With
order it is part of the request's first step, before the forward pass, and its names are published on credit; if it fails, the
step that it was in is known to have failed when it completes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvproof.reference.journal import Entry
from kvproof.reference.lookup import Hit
from kvproof.reference.sequence import Sequence, Status
from kvproof.spec.errors import KvproofError
from kvproof.spec.geometry import Kind
from kvproof.spec.records import Load

if TYPE_CHECKING:
    from kvproof.reference.scheduler import Scheduler


@dataclass(slots=True, eq=False)
class Transfer:
    """A load in the making or under way: its record, the part of the local hit that it builds on, and its request.
    void: its bytes belong to a cache that was reset, and will not be used."""

    load: Load
    local: Hit
    sequence: Sequence
    void: bool = False


@dataclass(slots=True)
class Save:
    """Blocks of a finished request that a connector still reads. last_step: newest step that used them."""

    request: str
    blocks: list[int]
    last_step: int


class Connector:
    """Loads and saves of one scheduler. loading: those beside the steps, by request. begun: of these, the ones since the last
    `take_begun`, for who carries them out."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.loading: dict[str, Transfer] = {}
        self.begun: list[Load] = []
        self.saves: dict[int, Save] = {}
        self.jobs = 0

    # ------------------------------------------------------------------------------------------------------- loads

    def offer(self, sequence: Sequence, hit: Hit) -> Transfer | None:
        """The load that beats a local hit, if the outside has more. Of the hit it leaves the full append-only blocks."""
        lookup = self.scheduler.lookup
        stop = min(sequence.outside, sequence.known - 1)
        stop -= stop % lookup.grain
        if stop <= hit.length:
            return None
        size = next((group.block_size for group in lookup.groups if group.kind is Kind.APPEND_ONLY), hit.length or 1)
        start = hit.length - hit.length % size
        tables = [
            table[: start // size] if group.kind is Kind.APPEND_ONLY else []
            for group, table in zip(lookup.groups, hit.tables, strict=True)
        ]
        load = Load(sequence.id, start, stop, sequence.extras.ordered, [])
        return Transfer(load, Hit(start, hit.junction, tables, True), sequence)

    def begin(self, transfer: Transfer) -> bool:
        """Start a load beside the steps, if the pool has room. The request waits for it."""
        scheduler, sequence, load = self.scheduler, transfer.sequence, transfer.load
        demand = scheduler.coordinator.demand(sequence, load.stop, load.stop, transfer.local, 0, load.stop)
        if demand > scheduler.pool.free:
            scheduler.note_failed(sequence, load.start, load.stop, load.start, demand, "begin_load")
            return False
        held = scheduler.coordinator.admit(sequence, transfer.local, None)
        load.blocks = scheduler.coordinator.seat_load(sequence, load.stop)
        sequence.status = Status.LOADING
        self.loading[sequence.id] = transfer
        self.begun.append(load)
        entry = Entry("begin_load", sequence.id, load.start, load.stop, load.start, demand=demand, hits=held)
        scheduler.note_table(entry, sequence)
        return True

    def end(self, request_id: str, succeeded: bool) -> None:
        """A load beside the steps is over: its request runs on, or computes the tokens itself. Raises KvproofError where
        none runs for this request."""
        scheduler, transfer = self.scheduler, self.loading.pop(request_id, None)
        if transfer is None:
            raise KvproofError(f"no load runs for {request_id}: name a request that `loads` listed")
        sequence, load = transfer.sequence, transfer.load
        if sequence.status is Status.DEAD:
            scheduler.release(sequence, "end_load")
        elif transfer.void or not succeeded:
            sequence.outside = 0
            scheduler.requeue(sequence, "end_load")
        else:
            sequence.status = Status.RUNNING
            scheduler.running.append(sequence)
            scheduler.coordinator.register_rows(sequence, load.start, load.stop, None)
            scheduler.coordinator.register_states(sequence, load.stop, None)
            scheduler.note_table(Entry("end_load", request_id, load.start, load.stop), sequence)

    def take_begun(self) -> list[Load]:
        begun, self.begun = self.begun, []
        return begun

    def spoil(self, transfer: Transfer) -> None:
        """A load that was part of a step failed. What was read from it, and what was computed from that, is void: names
        go, and whoever holds any of it computes again; samples in flight are dropped. O(steps in flight, live tables)."""
        scheduler, load, names = self.scheduler, transfer.load, transfer.sequence.path
        void = {block for blocks in load.blocks for block in blocks}
        for flight in scheduler.flights_from(transfer):
            void.update(copy.dst for copy in flight.copies if copy.src in void)
            for block, name in flight.credit:
                common = min(name.length, load.stop)
                if common > load.start and names[common] is name.prefix(common):
                    void.add(block)
                    if name in scheduler.pool.keys[block]:
                        scheduler.pool.retract(block, name)
        scheduler.note(Entry("other", transfer.load.request))
        transfer.sequence.outside = 0
        victims = [s for s in scheduler.sequences.values() if s is transfer.sequence or not void.isdisjoint(s.blocks())]
        for victim in sorted(victims, key=lambda s: s.rank, reverse=True):
            if victim.id in self.loading:  # its blocks stay until the load into them is over
                self.loading[victim.id].void = True
            else:
                scheduler.requeue(victim, "spoil")

    def void_all(self) -> None:
        """The cache was reset: what loads still bring belongs to the old one."""
        for transfer in self.loading.values():
            transfer.void = True

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
