"""The inside checks: the kernel driven by what an engine did to its pool, and compared with what it keeps.

The monitor turns each operation of an engine (`Op`) into actions of the kernel. A guard that refuses is a fault, reported
under the check that the guard protects; the kernel then adopts what it observed and goes on, so that one known accounting
fault does not hide a corruption behind it. Work per operation is what the operation touches.

Operations arrive with the step that they staged, because what a step writes is needed to judge the keys that were published
on its credit. The end of a copy's holds is taken as of the issue of its step: nothing can run between the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import ne
from typing import Any

from kvproof.audit.checks import GUARDS
from kvproof.audit.compiled import compiled
from kvproof.audit.connector import Connector
from kvproof.audit.target import Hash, Observation, Op, OpKind, Result
from kvproof.spec.actions import ACTIONS
from kvproof.spec.device import drafted, next_token
from kvproof.spec.faults import Fault, Severity
from kvproof.spec.geometry import NULL_BLOCK, Group, Kind
from kvproof.spec.lineage import Forest, Key, Keys, Lineage, Path
from kvproof.spec.records import Config, Request, Row, Step
from kvproof.spec.state import Block, Holder, Owner, State

# What an action means to somebody who reads a report, with its parameters.
STORIES = {
    "start": "{owner} begins",
    "finish": "{owner} ends",
    "acquire": "block {block} is handed to {holder}",
    "share": "{holder} hits block {block} for {need}",
    "pin": "block {block} becomes an endpoint of a copy",
    "release": "{holder} lets block {block} go",
    "defer": "block {block} of {holder} goes behind the fence {until}",
    "expire": "the fence on block {block} ends",
    "hand_over": "{holder} goes over to {owner}",
    "forget": "{holder} stops relying on {need}",
    "publish": "block {block} is registered for {key}",
    "promote": "block {block} is registered for {key} in place of its shorter keys",
    "retract": "block {block} loses {key}",
    "redirect": "{slot} copies block {source} to its own block {target}",
    "move": "the keys of block {source} move to its copy {target}",
    "stage_zero": "block {block} is zeroed",
    "stage_write": "{holder} leaves {content} in block {block}",
    "stage_read": "{holder} reads block {block}",
    "stage_read_state": "{holder} starts from {key} in block {block}",
    "stage_load": "{holder} loads {content} into block {block} within the step",
    "cancel": "{holder} is preempted in its own step, which uses block {block}",
    "begin_load": "an outside load into block {block} of {holder} begins",
    "end_load": "the outside load of {content} into block {block} of {holder} ends",
    "spoil": "the load into block {block} has failed",
    "issue": "the step is issued",
    "complete": "the oldest step in flight completes",
}

ALLOCATE, FREE, COPIES_OUT, DRAIN = OpKind.ALLOCATE, OpKind.FREE, OpKind.COPIES_OUT, OpKind.DRAIN  # an enum is slow to ask
SPOIL, RESET, STATE = OpKind.SPOIL, OpKind.RESET, Kind.STATE
LOADS = (OpKind.BEGIN_LOAD, OpKind.END_LOAD, OpKind.SPOIL, OpKind.HAND_OVER, OpKind.END_SAVE)

Hashes = Callable[[str, int], Sequence[Hash]]
Holders = list[Holder | None]


@dataclass(eq=False, slots=True)
class Life:
    """One life of a request id: its owner, its text, its table as the engine showed it last, and a holder per slot."""

    request: Request
    owner: Owner
    path: Path
    tables: list[list[int]]
    holders: list[Holders]
    named: int = 0  # how many of its unit prefixes have a known hash

    def text(self, length: int) -> Lineage:
        """The first `length` tokens; what it will say is known in advance."""
        return self.path.upto(length, next_token)


class Monitor:
    """The kernel beside one engine. Every method returns the faults it found."""

    def __init__(self, config: Config, forest: Forest) -> None:
        self.config = config
        self.groups = config.geometry.groups
        self.keys = [forest.keys(group) for group in self.groups]  # lineages as each group sees them
        self.unit = config.geometry.unit
        self.blocks = config.geometry.num_blocks - 1
        self.forest = forest
        self.state = State(unordered=config.fences)
        self.kernel = compiled(self.state, self.refuse)
        self.lives: dict[str, Life] = {}
        self.epochs: Counter[str] = Counter()
        self.lineages: dict[Hash, Lineage] = {}
        self.names: dict[Lineage, Hash] = {}
        self.skew: dict[Block, int] = {}  # reference counts known to be off by so much
        self.free_skew = 0
        self.endings: list[tuple[Holder, Block]] = []  # copy endpoints let go while their step is being staged
        self.credit: Counter[Block] = Counter()  # how many of those by block
        self.pins: list[tuple[Holder, Block]] = []  # copy endpoints of the step being staged
        self.staged: list[tuple[Life, Holder, Block]] = []  # whose forward pass uses what in that step
        self.deferred: dict[Block, list[Holder]] = {}
        self.overdue: set[Holder] = set()
        self.zeroes: dict[Block, Op] = {}  # blocks that the staged step zeroes, each with the last operation that takes it
        self.op: Op | None = None  # the one under way
        self.drafts: dict[str, Row] = {}  # rows of the staged step that have drafts
        self.connector = Connector(self)
        self.changed: dict[Key, None] = {}  # whose blocks changed since the events were compared
        self.faults: list[Fault] = []

    # ------------------------------------------------------------------------------------------------------ what happens

    def admit(self, request: Request) -> list[Fault]:
        """A request was sent to the engine; an id that ended before begins a new life."""
        self.epochs[request.id] += 1
        owner = Owner("request", request.id, self.epochs[request.id])
        self.kernel.start(owner)
        path = self.forest.text(request.prompt, request.salt)
        empty = len(self.groups)
        self.lives[request.id] = Life(request, owner, path, [[] for _ in range(empty)], [[] for _ in range(empty)])
        return self.report()

    def operations(self, ops: Iterable[Op], hashes: Hashes) -> list[Fault]:
        """What the engine did outside a step: aborts, resets."""
        for op in ops:
            self.operate(op, None, hashes)
        return self.report()

    def scheduled(self, ops: Iterable[Op], step: Step, hashes: Hashes) -> list[Fault]:
        """What the engine did to stage a step, and the step that went out (unless it is empty)."""
        ops = list(ops)
        zeroes = set(step.zeroes)
        self.zeroes = {block: op for op in ops for block in op.taken if block in zeroes} if zeroes else {}
        self.drafts = {row.request: row for row in step.rows if row.drafts}
        staged: list[tuple[int, int]] = []
        for op in ops:
            self.operate(op, step, hashes)
            staged += op.copies
        told = [(copy.src, copy.dst) for copy in step.copies]
        if staged != told and sorted(staged) != sorted(told):
            self.fault("copy-delivered", f"the pool staged the copies {staged}, the worker is told {told}", "copies differ")
        if step.issued:
            self.issue()
        return self.report()

    def completed(self, ops: Iterable[Op], step: Step, result: Result, hashes: Hashes) -> list[Fault]:
        """The oldest step in flight is done, what the engine did on its completion, and which requests ended with it."""
        if step.issued:
            self.kernel.complete()
        self.connector.failing = {load.request: load for load in step.loads if load.request in result.failed}
        for row in step.rows:
            life = self.lives.get(row.request) if row.drafts else None
            if life is not None:
                self.connector.rejected(life, row)
        for op in ops:
            self.operate(op, None, hashes)
        for request in result.finished:
            self.end(request)
        self.check_fences()
        return self.report()

    def ended(self, request: str) -> list[Fault]:
        """A request was aborted, and the engine did what it does then."""
        self.end(request)
        return self.report()

    def end(self, request: str) -> None:
        """A request is over: whatever it still holds is an orphan."""
        life = self.lives.pop(request, None)
        if life is None or self.connector.outlive(life):
            return
        self.kernel.finish(life.owner)
        if self.state.alive[life.owner] is False and any(any(table) for table in life.tables):
            held = [block for table in life.tables for block in table if block]
            self.fault("no-orphan", f"request {request} is over and still holds blocks {held}", "table outlives request")

    # ------------------------------------------------------------------------------------------------- one operation

    def operate(self, op: Op, step: Step | None, hashes: Hashes) -> None:
        self.op, kind = op, op.kind
        if kind is ALLOCATE:
            self.allocate(op, step)
        elif kind is FREE:
            self.free(op, step, hashes)
        elif kind is COPIES_OUT:
            self.copies_out(op)
        elif kind is DRAIN:
            self.drain(op)
        elif kind in LOADS:
            if kind is SPOIL and op.keys:
                self.index(op, hashes)
            self.connector.operate(op)
        if op.keys:
            self.index(op, hashes)
        elif kind is RESET:
            self.forget_keys()
        self.compare(op)

    def allocate(self, op: Op, step: Step | None) -> None:
        life = self.lives.get(op.request or "")
        if life is None:
            self.fault("no-orphan", f"blocks are allocated for request {op.request}, which is over", "allocation for nobody")
            return
        if op.failed and (op.taken or op.hits or op.copies):
            self.fault(
                "failure-changes-nothing",
                f"the allocation for {op.request} failed and took {op.taken}, hit {op.hits}, copies {op.copies}",
                "failed allocation",
            )
        if op.taken or op.hits:
            self.check_demand(op)
        tables = op.tables.get(life.request.id)
        if tables is not None:
            self.seat(life, op, tables)
        if step is not None and step.loads:
            self.connector.within(life, step)
        if not op.failed and op.stop > op.start:
            self.stage(life, op, step)

    def check_demand(self, op: Op) -> None:
        if op.demand is None or op.failed:
            return
        claimed = len(op.taken)
        if op.hits:
            claimed += sum(1 for block in set(op.hits) if not self.state.holds.at(block))
        if claimed > op.demand:
            self.fault(
                "demand-bounds",
                f"the estimate for {op.request} was {op.demand} blocks, the allocation claimed {claimed}",
                "estimate too small",
            )

    def seat(self, life: Life, op: Op, tables: list[list[int]]) -> None:
        """Bring the request's holders to the table the engine shows: leave, then hit, then acquire, then copy."""
        arrivals: list[tuple[Group, int, int]] = []
        for group, old, new in zip(self.groups, life.tables, tables, strict=True):
            if new == old:
                continue
            holders, kept = life.holders[group.index], len(old)
            slots: Sequence[int] = range(kept, len(new))
            if old != new[:kept]:
                kept = min(kept, len(new))
                changed = list(compress(range(kept), map(ne, old, new)))
                for slot in (*changed, *range(kept, len(old))):
                    self.leave(holders[slot], old[slot])
                    holders[slot] = None
                del holders[kept:]
                slots = (*changed, *range(kept, len(new)))
            holders += [None] * (len(new) - kept)
            arrivals += [(group, slot, new[slot]) for slot in slots if new[slot]]
            life.tables[group.index] = list(new)
        if not op.hits and not op.copies:
            for group, slot, block in arrivals:
                self.acquire(life, group, slot, block)
            return
        private = {target: source for source, target in op.copies}
        taken, hits = set(op.taken), set(op.hits)
        for group, slot, block in arrivals if hits else ():
            source = private.get(block)
            if source in hits and block in taken:
                self.hit(life, group, slot, source, op)
            elif block in hits:
                self.hit(life, group, slot, block, op)
        for group, slot, block in arrivals:
            if life.holders[group.index][slot] is None:
                self.acquire(life, group, slot, block)
            elif block in private:
                self.redirect(life, group, slot, private[block], block)
        for source, target in op.copies:
            if target in taken and not any(block == target for _, _, block in arrivals):
                self.snapshot(life, source, target)

    def hit(self, life: Life, group: Group, slot: int, block: Block, op: Op) -> None:
        """A slot takes a cached block, relying on what the engine counts as computed."""
        reach = min(op.hit, (slot + 1) * group.block_size)
        holder = Holder(group.index, (life.request.id, slot))
        life.holders[group.index][slot] = holder
        if group.kind is STATE:
            reach = op.hit
        need = life.text(max(reach, 1)).key(group)
        key = next((k for k in self.state.keyed.at(block) if k.covers(need)), need)
        if self.kernel.share(holder, block, key, need, life.owner):
            self.state.needs.clear_of(holder)

    def acquire(self, life: Life, group: Group, slot: int, block: Block) -> Holder:
        holder = Holder(group.index, (life.request.id, slot))
        life.holders[group.index][slot] = holder
        self.take_block(holder, block, life.owner)
        return holder

    def take_block(self, holder: Holder, block: Block, owner: Owner) -> None:
        if keys := self.state.keyed.at(block):
            self.changed.update(dict.fromkeys(keys))
        self.kernel.acquire(holder, block, owner)
        if self.zeroes and self.zeroes.get(block) is self.op:
            self.kernel.stage_zero(block)

    def redirect(self, life: Life, group: Group, slot: int, source: Block, target: Block) -> None:
        """Consumer copy-on-write: the slot that hit the source goes on with a private copy."""
        hitter = life.holders[group.index][slot]
        assert hitter is not None
        holder = self.acquire(life, group, slot, target)
        self.pin(group, target)
        refused = self.kernel.redirect(hitter, source, holder, target)
        self.pins.append((hitter, source))
        if refused:
            self.state.needs.clear_of(holder)

    def snapshot(self, life: Life, source: Block, target: Block) -> None:
        """Producer copy-on-write: the keys of a running block go to a copy that nobody but the cache has."""
        group = self.group_of(life, source)
        holder = Holder(group.index, (life.request.id, "snapshot"))
        self.take_block(holder, target, life.owner)
        self.pin(group, target)
        self.pin(group, source)
        self.kernel.move(source, target)
        self.kernel.release(holder, target)

    def group_of(self, life: Life, block: Block) -> Group:
        return next((g for g in self.groups if block in life.tables[g.index]), self.groups[-1])

    def pin(self, group: Group, block: Block) -> None:
        fence = Holder(group.index, ("copy", self.state.staging))
        self.kernel.pin(fence, block, self.state.staging)
        self.pins.append((fence, block))

    # ------------------------------------------------------------------------------------------------ what the step does

    def stage(self, life: Life, op: Op, step: Step | None) -> None:
        """The reads and writes of the forward pass for tokens [start, stop)."""
        start, stop = op.start, op.stop
        text = life.text(stop)
        row = self.drafts.get(life.request.id) if self.drafts else None
        wrote = text if row is None else drafted(life.text(stop - row.drafts), row.drafts)[1]
        for keys, holders, table in zip(self.keys, life.holders, life.tables, strict=True):
            if keys.group.kind is STATE:
                self.stage_state(life, keys, holders, table, start, text)
            else:
                self.stage_rows(life, keys, holders, table, start, wrote)
        for export in step.checkpoints if step is not None else ():
            if export.request == life.request.id and start < export.position < stop:
                self.stage_checkpoint(life, self.groups[export.group], export.block, export.position)

    def stage_rows(self, life: Life, keys: Keys, holders: Holders, table: list[Block], start: int, wrote: Lineage) -> None:
        size, line, stop, after = keys.group.block_size, wrote.line, wrote.length, self.state.after
        first = start // size
        if self.state.unordered:
            for holder, block in zip(holders[:first], table, strict=False):
                if holder is not None:
                    self.staged.append((life, holder, block))
                    self.kernel.stage_read(holder, block)
        for slot in range(first, min((stop - 1) // size + 1, len(table))):
            holder, block = holders[slot], table[slot]
            if holder is not None:
                key = keys[line[min(stop, (slot + 1) * size)]]
                self.staged.append((life, holder, block))
                self.kernel.stage_write(holder, block, key.over(after[block], max(start, slot * size)), key)

    def stage_state(self, life: Life, keys: Keys, holders: Holders, table: list[Block], start: int, text: Lineage) -> None:
        size, slots = keys.group.block_size, len(holders)
        slot = (start - 1) // size
        if start and slot < slots and (holder := holders[slot]) is not None:
            self.staged.append((life, holder, table[slot]))
            if self.kernel.stage_read_state(holder, table[slot], keys[text.line[start]]):
                self.state.reads.clear_of(holder)
        slot = (text.length - 1) // size
        if slot < slots and (holder := holders[slot]) is not None:
            self.staged.append((life, holder, table[slot]))
            key = keys[text]
            self.kernel.stage_write(holder, table[slot], key.content, key)

    def stage_checkpoint(self, life: Life, group: Group, block: Block, position: int) -> None:
        table = life.tables[group.index]
        if block in table:
            holder = life.holders[group.index][table.index(block)]
            if holder is not None:
                self.staged.append((life, holder, block))
                key = life.text(position).key(group)
                self.kernel.stage_write(holder, block, key.content, key)

    def issue(self) -> None:
        self.kernel.issue()
        self.pins.clear()
        self.staged.clear()
        endings, self.endings = self.endings, []
        self.credit.clear()
        for holder, block in endings:
            self.kernel.expire(holder, block)

    # --------------------------------------------------------------------------------------------------- how holders end

    def leave(self, holder: Holder | None, block: Block, until: int | None = None) -> None:
        """A holder ends: at once, or behind the fence of a step."""
        if holder is None:
            return
        if until is None:
            self.kernel.release(holder, block)
            return
        self.kernel.defer(holder, block, until)
        self.deferred.setdefault(block, []).append(holder)

    def free(self, op: Op, step: Step | None, hashes: Hashes) -> None:
        """A request leaves its table: finished, aborted or preempted."""
        life = self.lives.get(op.request or "")
        if life is None:
            return
        staged = [(holder, block) for whose, holder, block in self.staged if whose is life]
        if staged:
            self.index(op, hashes)
            self.cancel(life, staged)
        self.leave_table(life, op)
        if step is not None and op.request in step.preempted and op.deferred:
            self.fault(
                "preemption-frees",
                f"request {op.request} is preempted and its blocks go behind a fence: nothing is free now",
                "blocks behind a fence",
            )

    def cancel(self, life: Life, staged: Iterable[tuple[Holder, Block]]) -> None:
        """Preempted in the step that it was scheduled in: its reads and writes are withdrawn."""
        for holder, block in dict.fromkeys(staged):
            if self.state.holds[holder, block]:
                self.kernel.cancel(holder, block)
        self.staged = [entry for entry in self.staged if entry[0] is not life]

    def leave_table(self, life: Life, op: Op) -> None:
        """Every slot lets its block go, behind a fence where the operation says so."""
        fences = {block: until for until, blocks in op.deferred for block in blocks}
        for group in self.groups:
            for holder, block in zip(life.holders[group.index], life.tables[group.index], strict=True):
                self.leave(holder, block, fences.get(block))
            life.holders[group.index] = []
            life.tables[group.index] = []

    def copies_out(self, op: Op) -> None:
        """The copies' holds on their endpoints end, at once (as of the issue of the step) or behind a fence."""
        fences = {block: until for until, blocks in op.deferred for block in blocks}
        left = Counter(op.dropped)
        for _, blocks in op.deferred:
            left.update(blocks)
        for holder, block in self.pins:
            if not left[block]:
                continue
            left[block] -= 1
            if block in fences:
                self.deferred.setdefault(block, []).append(holder)
                if fences[block] < self.state.fence[holder]:
                    self.fault(
                        "endpoint-held",
                        f"block {block} is released at step {fences[block]}, its copy runs in {self.state.fence[holder]}",
                        "fence before the copy",
                    )
            else:
                self.endings.append((holder, block))
                self.credit[block] += 1

    def drain(self, op: Op) -> None:
        """Deferred holders whose fence was reached return to the pool."""
        for block in op.dropped:
            fenced = self.deferred.get(block)
            if not fenced:
                continue
            holder = min(fenced, key=lambda h: self.state.fence[h])
            fenced.remove(holder)
            if not fenced:
                del self.deferred[block]
            self.overdue.discard(holder)
            self.kernel.expire(holder, block)

    def check_fences(self) -> None:
        """A fence may outlast its step by the steps in flight, not more."""
        bound = self.state.completed - self.config.depth
        for block, holders in self.deferred.items():
            for holder in holders:
                if self.state.fence[holder] <= bound and holder not in self.overdue:
                    self.overdue.add(holder)
                    self.fault(
                        "fence-drains",
                        f"block {block} waits behind the fence {self.state.fence[holder]}; {self.state.completed} is done",
                        "fence never drained",
                    )

    # ------------------------------------------------------------------------------------------------------------- keys

    def learn(self, request: str, hashes: Hashes) -> None:
        """The engine's names of a request's prefixes; two texts must not share one, nor one text have two."""
        life = self.lives.get(request)
        if life is None:
            return
        names, unit = hashes(request, life.named), self.unit
        if not names:
            return
        line = life.text((life.named + len(names)) * unit).line
        for name in names:
            life.named += 1
            lineage = line[life.named * unit]
            known, other = self.lineages.setdefault(name, lineage), self.names.setdefault(lineage, name)
            if known is not lineage or other != name:
                self.fault(
                    "hash-injective",
                    f"hash {name!r} of {request} names {lineage!r}, and {known!r} too",
                    "one hash, two texts" if known is not lineage else "one text, two hashes",
                )

    def index(self, op: Op, hashes: Hashes) -> None:
        """Bring the kernel's keys of the touched blocks to what the engine's index holds, change by change.

        A key that comes and goes within one operation is passed over: nobody can have found it.
        """
        if op.request:
            self.learn(op.request, hashes)
        last = dict(op.keys)
        for block, entries in op.keys:
            known, shown = self.state.keyed.at(block), self.shown(block, entries)
            if shown == known:
                continue
            known = set(known)
            if entries is not last[block]:
                shown &= known | self.shown(block, last[block])
            added, gone = shown - known, known - shown
            if added and gone:
                longest = max(added, key=lambda k: k.lineage.length)
                if all(longest.lineage.starts_with(k.lineage) for k in gone):
                    added.discard(longest)
                    self.promote(block, longest)
                    gone = set(self.state.keyed.at(block)) - shown
            for key in gone:
                self.retract(block, key)
            for key in added:
                self.publish(block, key)

    def shown(self, block: Block, entries: Iterable[tuple[int, Hash]]) -> set[Key]:
        """The keys of a block that the engine shows."""
        keys = set()
        for group, name in entries:
            lineage = self.lineages.get(name)
            if lineage is not None:
                keys.add(self.keys[group][lineage])
            else:
                self.fault("index-agrees", f"block {block} is keyed by {name!r}, which no request has", "unknown hash")
        return keys

    def publish(self, block: Block, key: Key) -> None:
        self.changed[key] = None
        self.kernel.publish(block, key)

    def promote(self, block: Block, key: Key) -> None:
        self.changed.update(dict.fromkeys((key, *self.state.keyed.at(block))))
        self.kernel.promote(block, key)

    def retract(self, block: Block, key: Key) -> None:
        self.changed[key] = None
        self.kernel.retract(block, key)

    def forget_keys(self) -> None:
        for key, block in self.state.keyed.pairs():
            self.retract(block, key)

    # ------------------------------------------------------------------------------------------------------- comparing

    def holders(self, block: Block) -> int:
        """How many references the engine should count; copy endpoints that it let go early, but in this step, are gone."""
        return len(self.state.holds.at(block)) - self.credit.get(block, 0)

    def compare(self, op: Op) -> None:
        """The engine's counts of the touched blocks against the kernel's holders."""
        columns, adjusted = self.state.holds.columns, self.credit or self.skew
        for block, count in op.refs.items():
            if adjusted or count != len(columns.get(block, ())):
                self.compare_count(block, count)
        if op.free_blocks is None:
            return
        held = len(columns)
        if self.credit:
            held -= sum(1 for block in self.credit if self.holders(block) <= 0)
        off = op.free_blocks + held - self.blocks
        if off != self.free_skew:
            self.free_skew = off
            what = f"the free queue counts {op.free_blocks} blocks, {off:+d} against the {held} held ones"
            self.fault("free-queue", what, "queue too long" if off > 0 else "queue too short")

    def compare_count(self, block: Block, count: int) -> None:
        off = count - self.holders(block)
        if off != self.skew.get(block, 0) and block != NULL_BLOCK:
            self.skew[block] = off
            self.fault(
                "refs-are-holders",
                f"block {block} has {self.holders(block)} holders and a reference count of {count}",
                "count too high" if off > 0 else "count too low",
                blocks=(block,),
            )

    def observed(self, seen: Observation, *, quiet: bool = False) -> list[Fault]:
        """The whole pool against the kernel. `quiet`: nobody is alive and nothing is in flight, so nothing may be left."""
        self.compare(Op(OpKind.OTHER, refs=dict(enumerate(seen.refs))))
        self.compare_queue(seen)
        self.compare_index(seen)
        for request, tables in seen.tables.items():
            life = self.lives.get(request)
            if life is None and any(map(any, tables)):
                self.fault("no-orphan", f"request {request} is over and has a table {tables}", "table outlives request")
        for name, requests in seen.leftovers.items():
            if requests:
                self.fault("no-orphan", f"{name} still remembers {requests}", f"{name} outlives its request")
        if quiet:
            self.compare_quiet(seen)
        return self.report()

    def compare_queue(self, seen: Observation) -> None:
        free = [b for b in range(1, self.config.geometry.num_blocks) if self.holders(b) <= 0]
        queue = Counter(seen.free_queue)
        twice = [block for block, times in queue.items() if times > 1]
        if twice:
            self.fault("free-queue", f"blocks {twice} are in the free queue more than once", "block queued twice")
        wrong = sorted(set(free) ^ queue.keys())
        if wrong and not any(self.skew.get(block) for block in wrong):
            self.fault("free-queue", f"blocks {wrong} are held and queued, or neither", "queue is not the unheld blocks")

    def compare_index(self, seen: Observation) -> None:
        """The kernel's keys, the index and what the blocks themselves are said to carry: the same (block, entry) pairs."""
        names = self.names
        index = {(block, entry) for entry, blocks in seen.index.items() for block in blocks}
        keyed = {(block, (key.group.index, names.get(key.lineage))) for key, block in self.state.keyed.pairs()}
        views = [(keyed, "index and blocks differ")]
        if seen.reverse is not None:
            reverse = {(block, entry) for block, entries in seen.reverse.items() for entry in entries}
            views.append((reverse, "index and reverse index differ"))
        for view, signature in views:
            if view != index:
                some = sorted(map(str, index ^ view))[:4]
                what = f"only one of them has these blocks and entries: {', '.join(some)}"
                self.fault("index-agrees", what, signature)

    def compare_quiet(self, seen: Observation) -> None:
        held = {b for _, b in self.state.holds.pairs() if not self.skew.get(b)}
        if held:
            self.fault("no-orphan", f"everything is over and blocks {sorted(held)} are held", "held at quiescence")
        if seen.pending_copies:
            self.fault("copy-delivered", f"copies {seen.pending_copies} were never told to a worker", "copies left over")
        if seen.deferred:
            self.fault("fence-drains", f"deferred frees {seen.deferred} are left at quiescence", "fence never drained")

    # ------------------------------------------------------------------------------------------------------- reporting

    def refuse(self, guard: str, action: str, arguments: tuple[Any, ...]) -> None:
        """A guard refused: a fault. The action is taken all the same."""
        told = STORIES[action].format(**dict(zip(ACTIONS[action].parameters, arguments, strict=True)))
        self.fault(GUARDS[guard], f"{told}: not so that {guard}", f"{action}: {guard}{kind_of(arguments)}")

    def fault(
        self, check: str, what: str, signature: str, *, severity: Severity | None = None, blocks: tuple[int, ...] = ()
    ) -> None:
        self.faults.append(Fault(check, what, signature, severity, self.state.staging, None, blocks))

    def report(self) -> list[Fault]:
        faults, self.faults = self.faults, []
        return faults


def kind_of(arguments: tuple[Any, ...]) -> str:
    """For a signature: what kind of key or block an action was about."""
    for argument in arguments:
        if isinstance(argument, Key):
            return f" ({argument.group.kind} key, {'partial' if argument.partial else 'full'})"
    return ""
