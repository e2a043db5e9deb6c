"""One program on one target under all checks; the distinct faults that it shows and the steps around them."""

from __future__ import annotations

import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, zip_longest
from typing import Any, cast

from kvproof.audit.checks import CHECKS
from kvproof.audit.events import Residency
from kvproof.audit.monitor import Monitor
from kvproof.audit.program import Abort, Add, AnyOperation, Complete, EndLoad, EndSave, Program, ResetCache, Schedule
from kvproof.audit.target import ConnectorTarget, Op, Result, Tables, Target, TargetCrashed
from kvproof.spec.device import Device
from kvproof.spec.faults import Fault, Severity
from kvproof.spec.lineage import Forest
from kvproof.spec.records import Config, Event, Extras, Load, Request, Step

OBSERVE_EVERY = 64  # steps between two full comparisons of the pool, and at least as many as it has blocks
STANDING_STEPS = 100  # steps in a row in which no request gets further than it ever was
ARREARS = 256  # checks that wait, some fifty steps: engine and checks are both faster than when they take turns
IDLE_STEPS = 3  # empty steps in a row, with nothing in flight, after which nothing will ever move

Identity = tuple[str, str]  # check, signature


@dataclass(slots=True)
class Finding:
    """The first firing of a check with one signature. operation: index in the program; its length while draining."""

    check: str
    signature: str
    severity: Severity
    what: str
    operation: int
    step: int

    @property
    def identity(self) -> Identity:
        return self.check, self.signature


@dataclass(slots=True)
class Line:
    """One step and what happened since the one before it. `free` is the engine's own count, None where unknown."""

    before: list[str]
    step: Step
    in_flight: int
    free: int | None
    faults: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Outcome:
    """What a run showed."""

    findings: dict[Identity, Finding] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    actions: Counter[str] = field(default_factory=Counter)
    steps: int = 0

    def note(self, fault: Fault, operation: int, line: Line | None) -> None:
        """Keeps a fault, unless one like it is known. line: the newest when it happened; None before the first step."""
        identity = fault.check, fault.signature
        if identity not in self.findings:
            severity = fault.severity or CHECKS[fault.check].severity
            step = fault.step or number_of(line)
            self.findings[identity] = Finding(*identity, severity, fault.what, operation, step)
            if line:
                line.faults.append(fault.check)

    def sort(self) -> None:
        """Findings in the order in which they happened, though checks are made in arrears."""
        self.findings = dict(sorted(self.findings.items(), key=lambda entry: (entry[1].operation, entry[1].step)))

    @property
    def line(self) -> Line | None:
        """The newest."""
        return self.lines[-1] if self.lines else None


def number_of(line: Line | None) -> int:
    """Of its step, 0 before the first one."""
    return line.step.number if line else 0


def run_program(target: Target, program: Program) -> Outcome:
    """Runs a program to quiescence. Raises `GeometryError` or `TargetUnavailable` where the target cannot serve it."""
    target.reset(program.config)
    session = Session(target, program.config)
    try:
        for index, operation in enumerate(program.operations):
            session.at = index
            session.do(operation)
        session.at = len(program.operations)
        session.observe(quiet=session.drain())
    except TargetCrashed as crash:
        session.crashed(crash)
    session.outcome.sort()
    if session.monitor:
        session.outcome.actions = session.monitor.kernel.counts()
    return session.outcome


class Session:
    """The harness around one target: who is alive, what is in flight, what each request said so far.

    The device runs with the engine, as the worker's answers come from it. The inside checks and the replay of the events need
    what the engine said, and its names of prefixes, which only grow while an id is not used again: they are made in arrears,
    each of them and in order, many in a row.
    """

    def __init__(self, target: Target, config: Config) -> None:
        self.target = target
        self.config = config
        forest = Forest()
        self.device = Device(config.geometry, forest)
        self.residency = Residency(config.geometry.groups)
        self.monitor = Monitor(config, forest) if target.observe() is not None else None
        self.connector = cast(ConnectorTarget, target) if hasattr(target, "add_with") else None
        self.loading: dict[str, Load] = {}  # loads beside the steps
        self.fails: dict[str, bool] = {}  # whether the load of a request's first step turns out to have failed
        self.in_flight: deque[Step] = deque()
        self.alive: set[str] = set()
        self.said: dict[str, list[int]] = {}
        self.reached: dict[str, int] = {}  # tokens that each request ever had computed
        self.standing = 0
        self.outcome = Outcome()
        self.at = 0  # index of the operation
        self.due: list[tuple[Callable[..., Iterable[Fault]], tuple[Any, ...], int, Line | None]] = []  # checks, for when
        self.pause = max(OBSERVE_EVERY, config.geometry.num_blocks)  # so that a step costs the same whatever the pool
        self.look_at = self.pause  # steps
        self.free: int | None = None
        self.tables: dict[str, Tables] = {}  # the scheduler's, as far as they changed
        self.since: list[str] = []  # what happened since the last step, for the step table

    # ------------------------------------------------------------------------------------------------- operations

    def do(self, operation: AnyOperation) -> None:
        match operation:
            case Add():
                self.add(operation)
            case Abort(id):
                if id in self.alive:
                    self.since.append(f"-{id}")
                    self.alive.discard(id)
                    self.target.abort(id)
                    self.between()
                    if self.monitor:
                        self.later(self.monitor.ended, id)
            case Schedule():
                self.schedule()
            case Complete():
                self.complete()
            case ResetCache():
                self.since.append("reset" if self.target.reset_cache() else "reset refused")
                self.between()
            case EndLoad(id, ok):
                self.end_load(id, ok)
            case EndSave():
                self.end_save()
            case _:
                pass  # of a pool alone

    def add(self, add: Add) -> None:
        request = self.request_of(add)
        if request is None:
            return
        if request.id in self.said:
            self.catch_up()  # the engine's names of an older request's prefixes go
        self.since.append(f"+{request.id}")
        self.alive.add(request.id)
        self.said[request.id] = list(request.prompt)
        self.reached[request.id] = 0
        self.device.admit(request)
        if self.monitor:
            self.later(self.monitor.admit, request)
        if self.connector and add.extras != Extras():
            self.connector.add_with(request, add.extras)
            self.fails[request.id] = add.fails
        else:
            self.target.add(request)
        self.between()

    def request_of(self, add: Add) -> Request | None:
        """The request, or None where it may not be sent now: its id is in use, it is empty or longer than the model."""
        flying = any(row.request == add.id for step in self.in_flight for row in step.rows)
        in_use = flying or add.id in self.alive or add.id in self.loading
        prompt = (*self.said.get(add.after or "", ()), *add.tokens)
        if in_use or not prompt or len(prompt) + add.max_tokens > self.config.max_model_len or add.max_tokens < 1:
            return None
        return Request(add.id, prompt, add.max_tokens, add.priority, add.salt)

    def schedule(self) -> Step:
        """Empty steps take a place in the pipeline too, as in EngineCore.step_with_batch_queue (vllm/v1/engine/core.py)."""
        while len(self.in_flight) >= self.config.depth:
            if self.in_flight[0].issued:
                self.complete()
            else:
                self.in_flight.popleft()
        step = self.target.schedule()
        line = Line(self.since, step, 0, None)
        self.outcome.lines.append(line)
        self.since = []
        ops = self.journal()
        self.begin_loads()
        self.faults(self.device.run(step))
        if self.tables:
            self.faults(self.tables_differ(step))
        if self.monitor:
            self.later(self.monitor.scheduled, ops, step, self.target.hashes)
        self.listen()
        self.in_flight.append(step)
        if step.issued:
            self.outcome.steps += 1
            self.advance(step)
        else:
            self.device.complete(step.number)
        line.in_flight, line.free = sum(flying.issued for flying in self.in_flight), self.free
        if self.outcome.steps >= self.look_at:
            self.observe(quiet=False)
        return step

    def advance(self, step: Step) -> None:
        """Counts steps in which no request computes a token that it never computed before."""
        self.standing += 1
        for row in step.rows:
            stop = row.stop
            if stop > self.reached.get(row.request, 0):
                self.reached[row.request] = stop
                self.standing = 0

    def complete(self) -> None:
        while self.in_flight and not self.in_flight[0].issued:
            self.in_flight.popleft()
        if not self.in_flight:
            return
        step = self.in_flight.popleft()
        tokens = self.device.sampled(step)
        self.since.append(f"={step.number}")
        result = self.result(step, tokens)
        self.device.complete(step.number)
        self.hear(result.accepted)
        self.alive.difference_update(result.finished)
        ops = self.journal()
        if self.monitor:
            self.later(self.monitor.completed, ops, step, result, self.target.hashes)
        self.listen()

    def hear(self, accepted: Mapping[str, Iterable[int]]) -> None:
        for request, tokens in accepted.items():
            if request in self.alive:
                self.said[request].extend(tokens)

    def result(self, step: Step, tokens: dict[str, int | list[int]]) -> Result:
        if self.connector is None:
            return self.target.complete(step, {request: token for request, token in tokens.items() if isinstance(token, int)})
        failed = [load.request for load in step.loads if self.fails.get(load.request)]
        for request in failed:
            self.device.spoil(step.number, request)
        result = self.connector.complete_with(step, tokens, failed)
        result.failed = failed
        return result

    # ------------------------------------------------------------------------------------------------------- connector

    def begin_loads(self) -> None:
        for load in self.connector.loads() if self.connector else ():
            self.since.append(f"load {load.request}")
            self.loading[load.request] = load
            self.faults(self.device.outside_write(block for blocks in load.blocks for block in blocks))

    def end_load(self, request: str, ok: bool) -> None:
        load = self.loading.pop(request, None)
        if load is None or self.connector is None:
            return
        self.since.append(f"loaded {request}" if ok else f"load of {request} failed")
        for block, content in self.device.loaded(load) if ok and request in self.alive else ():
            self.faults(self.device.outside_write([block], content))
        self.connector.end_load(request, ok)
        self.between()

    def end_save(self) -> None:
        jobs = self.connector.saves() if self.connector else []
        if self.connector and jobs:
            self.since.append(f"saved {jobs[0]}")
            self.connector.end_save(jobs[0])
            self.between()

    def drain(self) -> bool:
        """Runs until nobody waits or runs and the worker was told of every end. False where that does not happen."""
        idle = 0
        while self.target.busy() and idle < IDLE_STEPS and self.standing < STANDING_STEPS:
            for request in tuple(self.loading):
                self.end_load(request, True)
            self.end_save()
            self.schedule()
            idle = 0 if any(step.issued for step in self.in_flight) else idle + 1
        if self.target.busy():
            self.faults([stall(idle, self.standing, sorted(self.alive))])
            return False
        while self.in_flight:
            self.complete()
        for request in tuple(self.loading):
            self.end_load(request, True)
        while self.connector and self.connector.saves():
            self.end_save()
        self.schedule()
        while self.in_flight:
            self.complete()
        for request in sorted(self.device.requests):
            what = f"{request} ended, and the worker was not told by the next step"
            self.faults([Fault("finished-forgotten", what, "never told", request=request)])
        return True

    # ------------------------------------------------------------------------------------------------------ checks

    def journal(self) -> list[Op]:
        """What the engine did to its pool since the last call."""
        ops = self.target.journal()
        for op in ops:
            if op.tables:
                self.tables.update(op.tables)
        if ops and ops[-1].free_blocks is not None:
            self.free = ops[-1].free_blocks
        return ops

    def between(self) -> None:
        """Hands what the engine did outside a step to the checks."""
        ops = self.journal()
        if self.monitor:
            self.later(self.monitor.operations, ops, self.target.hashes)
        self.listen()

    def listen(self) -> None:
        """Takes the events in."""
        self.later(self.heard, self.target.events(), number_of(self.outcome.line))
        if len(self.due) >= ARREARS:
            self.catch_up()

    def heard(self, events: Sequence[Event], number: int) -> list[Fault]:
        """The events up to a step, as a replay takes them, and then against the index entries that changed."""
        faults = list(self.residency.consume(events, number)) if events else []
        monitor = self.monitor
        if monitor and monitor.changed:
            for key in monitor.changed:
                name = monitor.names.get(key.lineage)
                held, heard = len(monitor.state.keyed.of(key)), self.residency.blocks(key.group.index, name)
                if held != heard and name is not None:
                    what = f"{name!r} of group {key.group.index}: {heard} blocks by the events, {held} in the index"
                    way = "more" if held > heard else "fewer"
                    faults.append(Fault("event-residency", what, f"index, {way} blocks than announced"))
            monitor.changed.clear()
        return faults

    def later(self, check: Callable[..., Iterable[Fault]], *given: Any) -> None:
        """Puts off a check that needs nothing else than what it is given."""
        self.due.append((check, given, self.at, self.outcome.line))

    def catch_up(self) -> None:
        """Makes all checks that are due."""
        due, self.due = self.due, []
        for check, given, operation, line in due:
            for fault in check(*given):
                self.outcome.note(fault, operation, line)

    def tables_differ(self, step: Step) -> Iterator[Fault]:
        """Rows whose worker table names another block than the scheduler's, where that one changed since the last step.

        A slot that the scheduler gave up is null in its table; the worker keeps the old id there and does not use it.
        """
        for row in step.rows:
            ours = self.tables.pop(row.request, None)
            if not ours:
                continue
            for group, (scheduled, told) in enumerate(zip(ours, self.device.table(row.request), strict=False)):
                if told != scheduled and list(compress(told, scheduled)) != list(filter(None, scheduled)):
                    pairs = enumerate(zip_longest(scheduled, told[: len(scheduled)]))
                    slot, ours_, theirs_ = next((slot, a, b) for slot, (a, b) in pairs if a and a != b)
                    what = f"{row.request}, group {group}, slot {slot}: scheduler {ours_}, worker {theirs_}"
                    yield Fault("table-agreement", what, "worker table", None, step.number, row.request)

    def observe(self, *, quiet: bool) -> None:
        """Holds the whole pool against the checks' view of it."""
        self.catch_up()
        self.look_at = self.outcome.steps + self.pause
        observation = self.target.observe()
        if observation is None:
            return
        blocks = {entry: len(blocks) for entry, blocks in observation.index.items()}
        self.faults(self.residency.compare(blocks, number_of(self.outcome.line)))
        if self.monitor:
            self.faults(self.monitor.observed(observation, quiet=quiet))

    def faults(self, faults: Iterable[Fault]) -> None:
        for fault in faults:
            self.outcome.note(fault, self.at, self.outcome.line)

    def crashed(self, crash: TargetCrashed) -> None:
        self.catch_up()
        cause = crash.__cause__ or crash
        frames = traceback.extract_tb(cause.__traceback__)
        signature = f"{type(cause).__name__} in {frames[-1].name if frames else '?'}"
        self.faults([Fault("engine-alive", f"the engine raised {crash}", signature)])


def stall(idle: int, standing: int, alive: list[str]) -> Fault:
    names = ", ".join(alive)
    if idle >= IDLE_STEPS:
        what = f"{names}: {idle} schedules in a row gave no work, with nothing in flight and requests waiting"
        return Fault("progress", what, "no step has work")
    return Fault("progress", f"{names}: {standing} steps in a row and nobody gets further", "steps without progress")
