"""The scheduler: who computes how much in the next step, and what comes back from it.

Running sequences go first, in order, then waiting ones. All get what the token budget leaves. A sequence advances when its step
is issued, before the result is known; for samples that steps in flight will bring there are placeholders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Listing

from kvproof.reference.chunking import Chunking
from kvproof.reference.connector import Connector, Transfer
from kvproof.reference.coordinator import Coordinator
from kvproof.reference.events import EventLog
from kvproof.reference.fences import Fences
from kvproof.reference.journal import Entry, Journal
from kvproof.reference.lookup import Hit, Lookup
from kvproof.reference.pool import Pool
from kvproof.reference.preemption import Preemption, Room
from kvproof.reference.sequence import Sequence, Status
from kvproof.reference.staging import Share, Staging
from kvproof.reference.waiting import Waiting
from kvproof.spec.errors import KvproofError
from kvproof.spec.lineage import Lineage
from kvproof.spec.records import Config, Copy, Row, Step


class Flight:
    """An issued step that is not completed. rows: sequence, its life then, tokens, whether it samples. copies: as issued.
    credit: what was published on its credit. transfers: outside loads that are part of it."""

    __slots__ = ("copies", "credit", "number", "rows", "transfers")

    def __init__(self, staging: Staging) -> None:
        self.number = staging.number
        self.copies: list[Copy] = staging.copies
        self.transfers: list[Transfer] = staging.transfers
        self.credit: list[tuple[int, Lineage]] = []
        self.rows: list[tuple[Sequence, int, int, bool]] = []


class Scheduler:
    """One pool, its tables and the sequences on it.

    issued, completed: step numbers. ended, preempted: what the worker hears of with the next step.
    """

    def __init__(self, config: Config, *, journal: bool) -> None:
        geometry = config.geometry
        self.config = config
        self.journal = Journal(on=journal)
        self.event_log = EventLog()
        self.pool = Pool(geometry.num_blocks, len(geometry.groups), geometry.unit, self.event_log, self.journal)
        self.lookup = Lookup(self.pool, geometry)
        self.coordinator = Coordinator(self.pool, geometry)
        self.chunking = Chunking(config)
        self.fences = Fences(self.pool)
        self.preemption = Preemption(self)
        self.connector = Connector(self)
        self.sequences: dict[str, Sequence] = {}
        self.running: list[Sequence] = []
        self.waiting = Waiting()
        self.flights: deque[Flight] = deque()
        self.issued = self.completed = 0
        self.ended: list[str] = []
        self.preempted: list[str] = []

    # ---------------------------------------------------------------------------------------------------- staging

    def schedule(self) -> Step:
        """The next step. It counts as issued if it has rows or copies."""
        staging = Staging(self.issued + 1, self.config.max_batched_tokens)
        self._stage_running(staging)
        if not staging.short:
            self._stage_waiting(staging)
        return self._issue(staging)

    def _stage_running(self, staging: Staging) -> None:
        index = 0
        while index < len(self.running) and staging.budget > 0:
            sequence = self.running[index]
            start = sequence.computed
            stop, exported = self._next_stop(sequence, staging.budget)
            if stop > start:
                room = self.preemption.make_room(sequence, stop, exported, staging)
                if room is Room.FOUND:
                    demand = self.coordinator.demand(sequence, start, stop, None, exported) if self.journal.on else 0
                    entry = Entry("allocate", sequence.id, start, stop, demand=demand) if self.journal.on else None
                    self._stage(sequence, stop, exported, staging, entry)
                elif room is Room.SOON:
                    return
                if staging.short:
                    index = self.running.index(sequence)  # those before it may be gone
            index += 1

    def _next_stop(self, sequence: Sequence, budget: int) -> tuple[int, int]:
        """Where the next chunk of a running sequence ends, its drafts included, and the inner position to export."""
        start = sequence.computed
        wanted = min(sequence.goal - start, budget)
        if wanted <= 0:
            return start, 0
        stop, exported = self._chunk(sequence, start, wanted)
        if sequence.extras.drafts and stop == sequence.known > sequence.prompt:
            stop = min(stop + sequence.extras.drafts, sequence.limit - 1, start + budget)
        return stop, exported

    def _stage_waiting(self, staging: Staging) -> None:
        passed: list[Sequence] = []
        while staging.budget > 0 and len(self.running) + len(self.connector.loading) < self.config.max_seqs:
            sequence = self.waiting.first()
            if sequence is None:
                break
            if sequence.stale:  # samples of an earlier life come back first, else they would be sampled twice
                passed.append(sequence)
                self.waiting.pop()
            elif not self._admit(sequence, staging):
                break
        for sequence in passed:
            self.waiting.push(sequence)

    def _admit(self, sequence: Sequence, staging: Staging) -> bool:
        """Let the first in line run, if what it hits is ready, the budget reaches a stop and the pool has room."""
        hit = self.lookup.find(sequence.path, staging.ready)
        transfer = self.connector.offer(sequence, hit) if sequence.outside else None
        hit = hit if transfer is None else transfer.local
        if not hit.ready:
            return False
        sequence.junction = hit.junction
        sequence.kept = self.chunking.kept(hit.junction, sequence.prompt)
        if transfer is not None and not transfer.load.ordered:
            begun = self.connector.begin(transfer)
            if begun:
                self.waiting.pop()
            return begun
        return self._admit_to_step(sequence, hit, transfer, staging)

    def _admit_to_step(self, sequence: Sequence, hit: Hit, transfer: Transfer | None, staging: Staging) -> bool:
        start = hit.length if transfer is None else transfer.load.stop
        stop, exported = self._chunk(sequence, start, min(sequence.goal - start, staging.budget))
        if stop <= start:
            return False
        loaded = 0 if transfer is None else start
        demand = self.coordinator.demand(sequence, start, stop, hit, exported, loaded)
        if demand > self.pool.free:
            self.note_failed(sequence, start, stop, hit.length, demand)
            return False
        self.waiting.pop()
        sequence.status = Status.RUNNING
        self.running.append(sequence)
        entry = Entry("allocate", sequence.id, start, stop, hit.length, demand=demand)
        entry.hits = self.coordinator.admit(sequence, hit, staging)
        if transfer is not None:
            transfer.load.blocks = self.coordinator.seat_load(sequence, start)
            staging.load(transfer)
        self._stage(sequence, stop, exported, staging, entry)
        return True

    def _chunk(self, sequence: Sequence, start: int, wanted: int) -> tuple[int, int]:
        return self.chunking.stop(start, wanted, sequence.prompt, sequence.known, sequence.junction)

    def _stage(self, sequence: Sequence, stop: int, exported: int, staging: Staging, entry: Entry | None) -> None:
        """Take blocks for tokens up to `stop`, name what they will hold, and put the sequence into the step. entry: for the
        journal; None where nobody reads it."""
        start, coordinator = sequence.computed, self.coordinator
        share = staging.shares[sequence.id] = Share(sequence, start, stop)
        staging.budget -= stop - start
        coordinator.extend(sequence, start, stop, exported, staging)
        if staging.transfers and staging.transfers[-1].sequence is sequence:
            coordinator.register_rows(sequence, staging.transfers[-1].load.start, start, share)
            coordinator.register_loaded(sequence, start, stop, share)
        coordinator.register_rows(sequence, start, min(stop, sequence.known), share)
        if exported:
            coordinator.register_states(sequence, exported, share, exported=True)
        if stop <= sequence.known:
            coordinator.register_states(sequence, stop, share)
        else:
            sequence.owed.append(stop)
        if entry is not None:
            entry.copies = [(copy.src, copy.dst) for copy in staging.copies[staging.noted :]]
            staging.noted = len(staging.copies)
            self.note_table(entry, sequence)

    def _issue(self, staging: Staging) -> Step:
        """Close the step: tell the worker, and count its tokens as computed."""
        step = Step(staging.number, [], self.ended, self.preempted, list(staging.zeroes), copies=staging.copies)
        step.checkpoints = staging.checkpoints
        step.loads = [transfer.load for transfer in staging.transfers]
        self.ended, self.preempted = [], []
        flight = Flight(staging)
        for share in staging.shares.values():
            row = self._row(share)
            step.rows.append(row)
            sequence = share.sequence
            flight.rows.append((sequence, sequence.life, row.count, row.samples))
            flight.credit += share.credit
            sequence.computed = share.stop
            sequence.in_flight += row.count
            sequence.placeholders += row.samples
            sequence.last_step = staging.number
        if step.issued:
            self.issued = staging.number
            self.flights.append(flight)
        self._release_pins(staging)
        return step

    def _row(self, share: Share) -> Row:
        """What the worker is told: the whole table, or what came to its end since the last time."""
        sequence, count = share.sequence, share.stop - share.start
        drafts = share.stop - sequence.known - sequence.placeholders
        row = Row(sequence.id, share.start, count, drafts >= 0, drafts=max(drafts, 0))
        if sequence.told is None:
            row.table = [list(table) for table in sequence.tables]
        else:
            row.appended = [table[told:] for table, told in zip(sequence.tables, sequence.told, strict=True)]
        sequence.told = [len(table) for table in sequence.tables]
        return row

    def _release_pins(self, staging: Staging) -> None:
        """The copies' own references to their endpoints end with the step: when it is issued, or when it is completed."""
        if not staging.pins:
            return
        entry = Entry("copies_out")
        if self.config.fences:
            self.fences.defer(staging.number, staging.pins)
            entry.deferred = [(staging.number, staging.pins)]
        else:
            self.pool.drop_all(staging.pins)
            entry.dropped = staging.pins
        self.note(entry)

    # ------------------------------------------------------------------------------------------------- giving back

    def settled(self, last_step: int) -> bool:
        """Whether blocks that were last used by this step can be reused at once."""
        return not self.config.fences or last_step <= self.completed

    def give_back(self, blocks: list[int], last_step: int, entry: Entry) -> None:
        """References end, behind a fence where a step in flight may use the blocks and outside writers exist."""
        if self.settled(last_step):
            self.pool.drop_all(blocks)
            entry.dropped = blocks
        else:
            self.fences.defer(self.issued, blocks)
            entry.deferred = [(self.issued, blocks)]
        self.note(entry)

    def release(self, sequence: Sequence, kind: str = "free") -> None:
        """A sequence leaves its tables."""
        blocks = sequence.blocks()
        if blocks:
            entry = Entry(kind, sequence.id)
            entry.tables[sequence.id] = None
            self.give_back(blocks, sequence.last_step, entry)

    def requeue(self, sequence: Sequence, kind: str = "free") -> None:
        """Back to the line, to compute again what is not found in the cache then: preempted, or its load failed. Samples in
        flight are still good where it was preempted, and come back before it runs again."""
        if sequence.status is Status.RUNNING:
            self.running.remove(sequence)
            self.preempted.append(sequence.id)
        self.release(sequence, kind)
        sequence.begin(len(sequence.tables))
        sequence.life += 1
        if kind == "free":
            rows = (row for flight in self.flights for row in flight.rows)
            sequence.stale = sum(1 for owner, life, *_ in rows if owner is sequence and life >= sequence.kept_from)
        else:
            sequence.kept_from, sequence.stale = sequence.life, 0
        if sequence.status is not Status.WAITING:  # a load can fail after its request was preempted
            sequence.status = Status.WAITING
            self.waiting.push(sequence)

    def end(self, sequence: Sequence, *, finished: bool = False) -> None:
        """A sequence is over, finished or aborted: nothing is remembered of it, except by loads and saves."""
        if sequence.status is Status.RUNNING:
            self.running.remove(sequence)
        if finished and sequence.extras.save and any(sequence.tables):
            self.connector.hand_over(sequence)
        elif sequence.status is not Status.LOADING:
            self.release(sequence)
        sequence.status = Status.DEAD
        del self.sequences[sequence.id]
        self.ended.append(sequence.id)

    def reset_cache(self) -> None:
        """Everybody computes again, and nothing that was computed before is found. Samples in flight are dropped."""
        for sequence in reversed(list(self.running)):
            self.requeue(sequence)
        for sequence in self.sequences.values():
            sequence.kept_from = sequence.life
            sequence.stale = 0
        self.connector.void_all()
        self.pool.clear()
        self.note(Entry("reset"))

    # ------------------------------------------------------------------------------------------------- completing

    def complete(
        self, number: int, tokens: Mapping[str, int | Listing[int]], failed: Listing[str] = ()
    ) -> tuple[list[str], dict[str, list[int]]]:
        """The oldest step in flight is done: requests that ended with it, and accepted tokens per request.

        tokens: what each row that samples said; with drafts, the accepted ones and one more. failed: requests whose load,
        part of this step, brought nothing.
        """
        flight = self.flights[0]
        if flight.number != number:
            raise KvproofError(f"step {number} completes before step {flight.number}: complete steps in their order")
        self.completed = number
        drained = self.fences.drain(number)
        if drained:
            self.note(Entry("drain", dropped=drained))
        for transfer in flight.transfers:
            if transfer.load.request in failed:
                self.connector.spoil(transfer)
        self.flights.popleft()
        finished: list[str] = []
        accepted: dict[str, list[int]] = {}
        for sequence, life, count, samples in flight.rows:
            if sequence.status is Status.DEAD or life < sequence.kept_from:
                continue
            said = self._hear(sequence, tokens[sequence.id]) if samples else []
            self._settle(sequence, life, count, said)
            if samples:
                accepted[sequence.id] = said
            if sequence.known >= sequence.limit or (said and said[-1] == sequence.eos):
                self.end(sequence, finished=True)
                finished.append(sequence.id)
        return finished, accepted

    @staticmethod
    def _hear(sequence: Sequence, tokens: int | Listing[int]) -> list[int]:
        """What is accepted of the tokens that came back: up to the limit, and up to the token that ends the request."""
        said = [tokens] if isinstance(tokens, int) else list(tokens)
        said = said[: sequence.limit - sequence.known]
        if sequence.eos in said:
            said = said[: said.index(sequence.eos) + 1]
        sequence.hear(said)
        return said

    def _settle(self, sequence: Sequence, life: int, count: int, said: list[int]) -> None:
        """A row came back: drop rejected drafts, name what its tokens make known, null states that are not needed."""
        if life != sequence.life:
            sequence.stale -= 1
            return
        sequence.in_flight -= count
        if said:
            sequence.placeholders -= 1
            if sequence.extras.drafts and sequence.computed >= sequence.prompt:
                sequence.computed = min(sequence.computed, sequence.known - 1)
        known = min(sequence.computed, sequence.known)
        self.coordinator.register_rows(sequence, known, known, None)
        while sequence.owed and sequence.owed[0] <= known:
            self.coordinator.register_states(sequence, sequence.owed.pop(0), None)
        dropped = self.coordinator.retire(sequence)
        if self.journal.on and (dropped or self.journal.rekeyed):
            at = sequence.computed
            self.note_table(Entry("allocate", sequence.id, at, at, dropped=dropped), sequence)

    # ------------------------------------------------------------------------------------------------ observation

    def flights_from(self, transfer: Transfer) -> Iterator[Flight]:
        """The step that a load is part of, and those issued after it."""
        found = False
        for flight in self.flights:
            found = found or transfer in flight.transfers
            if found:
                yield flight

    def leftovers(self) -> dict[str, list[str]]:
        """Per-request maps that remember requests which ended, by name, for observers."""
        maps = {"sequences": self.sequences.values(), "running": self.running}
        ended = {name: [s.id for s in sequences if s.status is Status.DEAD] for name, sequences in maps.items()}
        return {name: ids for name, ids in ended.items() if ids}

    def note(self, entry: Entry) -> None:
        if self.journal.on:
            self.journal.close(entry, self.pool)

    def note_table(self, entry: Entry, sequence: Sequence) -> None:
        if self.journal.on:
            entry.tables[sequence.id] = [list(table) for table in sequence.tables]
            self.journal.close(entry, self.pool)

    def note_failed(self, sequence: Sequence, start: int, stop: int, hit: int, demand: int, kind: str = "allocate") -> None:
        if self.journal.on:
            self.note(Entry(kind, sequence.id, start, stop, hit, failed=True, demand=demand))
