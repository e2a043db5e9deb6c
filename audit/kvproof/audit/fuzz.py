"""The search: random programs until the time is over; each distinct finding once, shrunk."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from kvproof.audit.baseline import Entry
from kvproof.audit.case import Case, case_of
from kvproof.audit.engines import Harness
from kvproof.audit.program import Program
from kvproof.audit.session import Finding, Identity, Line, Outcome
from kvproof.audit.shrink import measure, shrink
from kvproof.audit.workload import ALL, Shape, Yield
from kvproof.spec.errors import GeometryError
from kvproof.spec.faults import Severity

SHRINK_RUNS = 400
SHRINK_SECONDS = 3.0  # kept for each finding, up to a third of the time; none gets more than twice its share
SEVERITIES = list(Severity)

Say = Callable[[float, str], None]  # share of the time used, what is going on


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. shapes: geometries to choose from, none for the default mix. seconds: for the whole run.

    known: findings that nobody wants to see shrunk again.
    """

    target: str
    profile: str = ALL
    geometry: str | None = None
    shapes: tuple[Shape, ...] = ()
    seed: int = 0
    seconds: float = 60.0
    known: frozenset[Identity] = frozenset()


@dataclass(slots=True)
class Sample:
    """The plainest program so far that shows a finding, where else it was seen, and how often."""

    finding: Finding
    program: Program
    origins: set[Yield]
    seen: int = 1


@dataclass(slots=True)
class Violation:
    """A finding after shrinking. origins: kinds of geometry that showed it. accepted: the baseline's entry for it.

    again: whether running its program a second time showed it again.
    """

    case: Case
    finding: Finding
    lines: list[Line]
    origins: list[Yield]
    seen: int
    again: bool
    accepted: Entry | None = None

    @property
    def identity(self) -> Identity:
        return self.finding.identity


@dataclass(slots=True)
class Summary:
    """What a run did and showed. refused: programs that the target could not serve, and the last reason."""

    plan: Plan
    release: str
    programs: int = 0
    steps: int = 0
    searched: float = 0.0
    seconds: float = 0.0
    refused: int = 0
    reason: str = ""
    actions: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    gone: list[Entry] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)  # what should have happened at least once and did not
    notes: list[str] = field(default_factory=list)

    @property
    def new(self) -> list[Violation]:
        return [violation for violation in self.violations if violation.accepted is None]

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.searched if self.searched else 0.0


def fuzz(harness: Harness, plan: Plan, say: Say | None = None) -> Summary:
    """Runs `plan`. Program number n of a seed is the same in every run; how many fit in the time is not."""
    say = say or (lambda used, what: None)
    summary = Summary(plan, harness.release)
    warm = harness.generate(random.Random(f"{plan.seed}/0"), plan.profile, plan.shapes)
    serve(harness, warm.with_operations([]))  # a first scheduler may import half a world
    start = time.monotonic()
    samples: dict[Identity, Sample] = {}
    try:
        search(harness, summary, samples, say, start)
    except KeyboardInterrupt:
        summary.notes.append("interrupted: what was found until then")
    summary.searched = time.monotonic() - start
    shrinker = Shrinker(harness)
    order = sorted(samples.values(), key=lambda s: (SEVERITIES.index(s.finding.severity), s.finding.identity))
    for index, sample in enumerate(order, start=1):
        used = time.monotonic() - start
        say(min(0.99, used / plan.seconds), f"shrinking finding {index} of {len(order)}")
        share = 2 * max(SHRINK_SECONDS, (plan.seconds - used) / (len(order) - index + 1))
        deadline = time.monotonic() + share * (sample.finding.identity not in plan.known)
        summary.violations.append(shrinker.violation(sample, deadline))
    summary.seconds = time.monotonic() - start
    return summary


def search(harness: Harness, summary: Summary, samples: dict[Identity, Sample], say: Say, start: float) -> None:
    """Runs one program after the other until it is time to shrink."""
    plan = summary.plan
    while True:
        used = (time.monotonic() - start) / plan.seconds
        if used >= 1 - min(1 / 3, SHRINK_SECONDS * len(samples.keys() - plan.known) / plan.seconds):
            return
        if summary.programs % 16 == 0:
            say(used, f"{summary.steps} steps, {len(samples)} findings")
        program = harness.generate(random.Random(f"{plan.seed}/{summary.programs}"), plan.profile, plan.shapes)
        summary.programs += 1
        served = serve(harness, program)
        if isinstance(served, str):
            summary.refused, summary.reason = summary.refused + 1, served
            continue
        program, outcome = served
        summary.steps += outcome.steps
        summary.actions += outcome.actions
        collect(samples, program, outcome, harness.shape_of(program.config.geometry).origin)


def serve(harness: Harness, program: Program) -> tuple[Program, Outcome] | str:
    """Runs a program, without the options that this target refuses; the reason where it refuses it altogether."""
    config = program.config
    plain = replace(config, junctions=False)
    reason = ""
    for attempt in dict.fromkeys((config, plain, replace(plain, geometry=replace(config.geometry, retention=None)))):
        try:
            served = Program(attempt, program.operations)
            return served, harness.run(served)
        except GeometryError as error:
            reason = str(error)
    return reason


def collect(samples: dict[Identity, Sample], program: Program, outcome: Outcome, origin: Yield) -> None:
    """Adds what a run showed. Small geometries are kept before large ones, early findings before late ones."""
    for identity, finding in outcome.findings.items():
        sample = samples.setdefault(identity, Sample(finding, program, {origin}, 0))
        sample.seen += 1
        sample.origins.add(origin)
        if plainness(program, finding) < plainness(sample.program, sample.finding):
            sample.finding, sample.program = finding, program


def plainness(program: Program, finding: Finding) -> tuple[bool, int, int]:
    return *sizes(program), finding.operation


def sizes(program: Program) -> tuple[bool, int]:
    """Equal and small blocks come first."""
    found = [group.block_size for group in program.config.geometry.groups]
    return len(set(found)) > 1, sum(found)


class Shrinker:
    """Shrinks the samples of one run. A program that was run for one finding is not run again for another one."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.shown: dict[Program, frozenset[Identity]] = {}
        self.small: list[Program] = []  # results so far: often they show the next finding too

    def findings(self, program: Program) -> frozenset[Identity]:
        if program not in self.shown:
            try:
                self.shown[program] = frozenset(self.harness.run(program).findings)
            except GeometryError:
                self.shown[program] = frozenset()
        return self.shown[program]

    def violation(self, sample: Sample, deadline: float) -> Violation:
        identity = sample.finding.identity
        showing = [small for small in self.small if identity in self.findings(small)]
        program = min([sample.program, *showing], key=lambda program: (sizes(program), measure(program)))
        again = identity in self.findings(program)
        if again and time.monotonic() < deadline:

            def shows(smaller: Program) -> bool:
                return time.monotonic() < deadline and identity in self.findings(smaller)

            early = program.with_operations(program.operations[: sample.finding.operation + 1])
            program = shrink(early if shows(early) else program, shows, SHRINK_RUNS)
            self.small.append(program)
        outcome = self.harness.run(program)
        finding = outcome.findings.get(identity, sample.finding)
        seen = sample.origins | {self.harness.shape_of(program.config.geometry).origin}
        origins = [origin for origin in Yield if origin in seen]
        return told(self.harness, program, outcome, finding, origins, sample.seen, again)


def told(
    harness: Harness,
    program: Program,
    outcome: Outcome,
    finding: Finding,
    origins: Sequence[Yield],
    seen: int = 1,
    again: bool = True,
) -> Violation:
    shape = harness.shape_of(program.config.geometry)
    case = case_of(harness.name, harness.release, shape.name, shape.origin, finding, program)
    return Violation(case, finding, outcome.lines, list(origins), seen, again)


def replay(harness: Harness, case: Case) -> list[Violation]:
    """All that the program of a case shows, the finding that it is about first."""
    outcome = harness.run(case.program)
    found = sorted(outcome.findings.values(), key=lambda f: (f.identity != case.finding.identity, f.operation))
    origins = [harness.shape_of(case.config.geometry).origin]
    return [told(harness, case.program, outcome, finding, origins) for finding in found]
