"""What a monitor does about a connector and a drafter: loads, failed loads, saves, rejected drafts."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING

from kvproof.audit.target import Op, OpKind
from kvproof.spec.device import drafted, load_contents
from kvproof.spec.geometry import Kind
from kvproof.spec.lineage import UNKNOWN
from kvproof.spec.records import Load, Row, Step
from kvproof.spec.state import Block, Holder, Owner

if TYPE_CHECKING:
    from kvproof.audit.monitor import Life, Monitor

Held = list[tuple[Holder, Block]]


class Connector:
    """Turns the operations of a connector into actions of the monitor's kernel."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self.jobs: defaultdict[str, deque[tuple[Owner, Held]]] = defaultdict(deque)  # by request, oldest first
        self.count = 0
        self.orphans: dict[str, Life] = {}  # requests that ended while a load into their blocks runs
        self.failing: dict[str, Load] = {}  # loads of the completing step that had failed

    def operate(self, op: Op) -> None:
        monitor, request = self.monitor, op.request or ""
        life = monitor.lives.get(request) or self.orphans.get(request)
        if op.kind is OpKind.END_SAVE:
            self.end_save(request, op)
        elif life is None:
            monitor.fault("no-orphan", f"{op.kind} for request {request}, which is over", f"{op.kind} for nobody")
        elif op.kind is OpKind.BEGIN_LOAD:
            self.begin(life, op)
        elif op.kind is OpKind.END_LOAD:
            self.end(life, op)
        elif op.kind is OpKind.SPOIL:
            self.spoil(life, op)
        else:
            self.hand_over(life, self.start("save", request), self.jobs[request])
            life.tables, life.holders = [[] for _ in life.tables], [[] for _ in life.holders]

    # --------------------------------------------------------------------------------------------------------------- loads

    def begin(self, life: Life, op: Op) -> None:
        """A load beside the steps: the slots that it fills are those that the operation acquired."""
        monitor = self.monitor
        if op.failed:
            return
        monitor.check_demand(op)
        monitor.seat(life, op, op.tables[life.request.id] or [])
        for holder, block in held(life):
            if block in op.taken:
                monitor.kernel.begin_load(holder, block, UNKNOWN)

    def end(self, life: Life, op: Op) -> None:
        monitor, request = self.monitor, life.request.id
        brought = op.tables.get(request) is not None
        loading = [(holder, block) for holder, block in held(life) if monitor.state.loading[holder, block]]
        if brought:
            contents = {}
            blocks = [[b for h, b in loading if h.group == group.index] for group in monitor.groups]
            for group, _, block, content, key in load_contents(
                Load(request, op.start, op.stop, False, blocks), monitor.groups, life.text
            ):
                contents[group.index, block] = content, key
            for holder, block in loading:
                monitor.kernel.end_load(holder, block, *contents[holder.group, block])
            return
        for _, block in loading:
            monitor.kernel.spoil(block, UNKNOWN)
        monitor.leave_table(life, op)
        if self.orphans.pop(request, None):
            monitor.kernel.finish(life.owner)

    def within(self, life: Life, step: Step) -> None:
        """The loads that are part of the step being staged."""
        for load in step.loads:
            if load.request != life.request.id:
                continue
            for group, slot, block, content, key in load_contents(load, self.monitor.groups, life.text):
                holder = life.holders[group.index][slot]
                if holder is not None:
                    self.monitor.staged.append((life, holder, block))
                    self.monitor.kernel.stage_load(holder, block, content, key)

    def spoil(self, life: Life, op: Op) -> None:
        """A load of an issued step had failed: what was loaded and what was computed from it is void."""
        monitor = self.monitor
        load = self.failing.pop(life.request.id, None)
        for group in monitor.groups if load else ():
            for slot, block in enumerate(life.tables[group.index]):
                if load and block and (group.kind is Kind.STATE or (slot + 1) * group.block_size > load.start):
                    monitor.kernel.spoil(block, UNKNOWN)
        monitor.leave_table(life, op)

    # --------------------------------------------------------------------------------------------------------------- saves

    def start(self, kind: str, request: str) -> Owner:
        self.count += 1
        job = Owner("job", f"{self.count} ({kind} of {request})")
        self.monitor.kernel.start(job)
        return job

    def hand_over(self, life: Life, job: Owner, jobs: deque[tuple[Owner, Held]] | None = None) -> None:
        for holder, _ in held(life):
            self.monitor.kernel.hand_over(holder, job)
        if jobs is not None:
            jobs.append((job, held(life)))

    def end_save(self, request: str, op: Op) -> None:
        monitor = self.monitor
        if not self.jobs[request]:
            monitor.fault("no-orphan", f"a save of {request} ends that never began", "save of nobody")
            return
        job, blocks = self.jobs[request].popleft()
        fences = {block: until for until, fenced in op.deferred for block in fenced}
        for holder, block in blocks:
            monitor.leave(holder, block, fences.get(block))
        monitor.kernel.finish(job)

    def outlive(self, life: Life) -> bool:
        """A request ends while a load into its blocks runs: the load goes on, and owns them. Whether that is so."""
        if not any(self.monitor.state.loading[holder, block] for holder, block in held(life)):
            return False
        job = self.start("load", life.request.id)
        self.hand_over(life, job)
        self.monitor.kernel.finish(life.owner)
        life.owner = job
        self.orphans[life.request.id] = life
        return True

    # -------------------------------------------------------------------------------------------------------------- drafts

    def rejected(self, life: Life, row: Row) -> None:
        """Drafts that turned out wrong: nobody relies on what was computed from them."""
        known = row.stop - row.drafts
        right, _ = drafted(life.text(known), row.drafts)
        for holder, _ in held(life):
            for need in tuple(self.monitor.state.needs.of(holder)):
                if need.lineage.length > known + right:
                    self.monitor.kernel.forget(holder, need)


def held(life: Life) -> Held:
    """Every slot of a request that holds a block."""
    return [
        (holder, block)
        for holders, table in zip(life.holders, life.tables, strict=True)
        for holder, block in zip(holders, table, strict=True)
        if holder is not None
    ]
