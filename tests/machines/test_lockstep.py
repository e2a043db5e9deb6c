"""Reference engine and specification in lockstep: the same pool, and the same decisions, operation by operation."""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from kvproof.audit.lockstep import Lockstep, LockstepError
from kvproof.audit.program import Abort, Add, AnyOperation, Complete, Program, ResetCache, Run, Schedule
from kvproof.audit.session import Session
from kvproof.audit.targets.reference import ReferenceTarget
from kvproof.audit.workload import ALL, Shape, Yield, random_program
from kvproof.reference.engine import least_pool
from kvproof.spec import chunks, demand, lookup
from kvproof.spec.geometry import Geometry
from kvproof.spec.records import Config, Policy

GEOMETRIES = {
    "16/16": Geometry.of(16, (16,), unit=4),
    "8/8": Geometry.of(8, (8,), unit=2),
    "4/16": Geometry.of(4, (16,), unit=2),
    "8/8,16": Geometry.of(8, (8, 16), unit=4),
    "coarse": Geometry.of(8, (8,), unit=8),
    "checkpoint": Geometry.of(8, (8, 8), unit=2, checkpoint=True),
    "no states": Geometry.of(8, unit=4),
}
ANSWERS = 20  # tokens at most
IDS = "abcdef"


def lockstep(config: Config) -> Session:
    """The reference engine with shadow device, kernel and lockstep beside it."""
    target = ReferenceTarget()
    target.reset(config)
    session = Session(target, config)
    assert session.monitor is not None
    session.monitor = Lockstep(config, session.monitor.forest)
    return session


def shown(session: Session) -> list[str]:
    """What the checks found, in words."""
    return [f"{finding.check}: {finding.what}" for finding in session.outcome.findings.values()]


def config_of(
    geometry: Geometry, budget: int, spare: int, *, depth: int, fences: bool, policy: Policy, junctions: bool, max_seqs: int
) -> Config:
    """spare: blocks beyond the fewest with which the longest request runs alone."""
    length = 3 * geometry.scheduler_block + ANSWERS
    roomy = replace(geometry, num_blocks=1_000_000)
    config = Config(roomy, budget, max_seqs, length, depth, fences, policy, junctions)
    return replace(config, geometry=replace(geometry, num_blocks=least_pool(config) + spare))


def prompt_of(family: int, shared: int, own: int, tokens: int) -> tuple[Run, ...]:
    """A prefix of a family's text and then `own` tokens, told apart from other prompts by their first one."""
    runs = ((5000 * family, 5000 * family + shared), (10_000 + 100 * tokens, 10_000 + 100 * tokens + own))
    return tuple(run for run in runs if run[0] < run[1])


class LockstepMachine(RuleBasedStateMachine):
    """Hypothesis chooses configuration and operations; after each of them everything is compared."""

    @initialize(
        name=st.sampled_from(sorted(GEOMETRIES)),
        retention=st.sampled_from((None, 0)),
        steps=st.sampled_from((0.5, 1, 2, 4)),
        odd=st.sampled_from((0, 0, 1, 3)),
        spare=st.sampled_from((0, 0, 2, 6, 40)),
        depth=st.integers(1, 3),
        fences=st.booleans(),
        policy=st.sampled_from(Policy),
        junctions=st.booleans(),
        max_seqs=st.sampled_from((2, 4)),
    )
    def begin(self, name: str, retention: int | None, steps: float, odd: int, spare: int, **rest: Any) -> None:
        geometry = replace(GEOMETRIES[name], retention=retention)
        budget = int(steps * geometry.scheduler_block) + odd
        self.session = lockstep(config_of(geometry, budget, spare, **rest))

    def do(self, operation: AnyOperation) -> None:
        self.session.do(operation)
        self.session.observe(quiet=False)
        assert shown(self.session) == []

    @rule(
        names=st.lists(st.sampled_from(IDS), min_size=1, max_size=3, unique=True),
        family=st.sampled_from((0, 0, 1)),
        quarters=st.integers(0, 12),
        off=st.sampled_from((0, 0, 1, 2, -1)),
        own=st.sampled_from((0, 0, 1, 2, 7)),
        tokens=st.integers(0, 1),
        max_tokens=st.integers(1, ANSWERS),
        priority=st.integers(0, 2),
        salt=st.sampled_from((None, None, None, "red")),
    )
    def add(self, names: list[str], family: int, quarters: int, off: int, own: int, tokens: int, **rest: Any) -> None:
        """Up to three requests that share a prefix, which ends on, before or after a quarter of a scheduler block."""
        shared = max(quarters * self.session.config.geometry.scheduler_block // 4 + off, 0)
        for number, name in enumerate(names):
            self.do(Add(name, prompt_of(family, shared, own, tokens + number), **rest))

    @rule(name=st.sampled_from(IDS), after=st.sampled_from(IDS), own=st.integers(1, 9), max_tokens=st.integers(1, ANSWERS))
    def follow(self, name: str, after: str, own: int, max_tokens: int) -> None:
        """A second turn: everything that another request said so far, and more."""
        self.do(Add(name, prompt_of(0, 0, own, 2), max_tokens, after=after))

    @rule(steps=st.integers(1, 8))
    def schedule(self, steps: int) -> None:
        for _ in range(steps):
            self.do(Schedule())

    @rule()
    def complete(self) -> None:
        self.do(Complete())

    @rule(name=st.sampled_from(IDS))
    def abort(self, name: str) -> None:
        self.do(Abort(name))

    @rule()
    def reset(self) -> None:
        self.do(ResetCache())

    def teardown(self) -> None:
        if hasattr(self, "session"):
            self.session.observe(quiet=self.session.drain())
            assert shown(self.session) == []


TestLockstep = LockstepMachine.TestCase
TestLockstep.settings = settings(
    max_examples=100, stateful_step_count=40, derandomize=True, deadline=None, phases=(Phase.explicit, Phase.generate)
)  # to shrink takes minutes


# ------------------------------------------------------------------------------------------------------ random programs


def disagreement(program: Program, seen: set[str] | None = None) -> str | None:
    """The first thing that engine and specification do not agree on in a run of the program. seen: gets what happened."""
    session = lockstep(program.config)
    try:
        for operation in program.operations:
            session.do(operation)
            if session.outcome.findings:
                return shown(session)[0]
        session.observe(quiet=session.drain())
    except LockstepError as error:
        return str(error)
    if seen is not None:
        assert session.monitor is not None
        seen.update(session.monitor.kernel.counts())
    return next(iter(shown(session)), None)


def generated(seed: int, name: str, profile: str) -> Program:
    return random_program(random.Random(seed), profile, [Shape(name, Yield.LEGAL, GEOMETRIES[name])])


@cache
def corpus() -> tuple[Program, ...]:
    """Fixed programs: steps narrower than a block, geometries that the default mix does not have, the default mix, and
    preemptions."""
    others = [generated(seed, name, ALL) for seed in range(8) for name in ("8/8,16", "coarse", "checkpoint", "no states")]
    narrow = [Program(replace(p.config, max_batched_tokens=9), p.operations) for p in others[:12]]
    mixed = [random_program(random.Random(seed)) for seed in range(30)]
    pressed = [generated(seed, name, "preempt") for seed in range(6) for name in ("4/16", "8/8")]
    return (*narrow, *others, *mixed, *pressed)


def test_random_programs_agree() -> None:
    seen: set[str] = set()
    assert [disagreement(program, seen) for program in corpus()] == [None] * len(corpus())
    assert seen >= {"share", "redirect", "move", "promote", "retract", "defer", "expire", "cancel", "stage_zero"}


MUTANTS: dict[str, tuple[Callable[..., Any], str, str]] = {
    "no stop at the tail": (chunks.chunk, "max(tail(prompt, unit), last)", "last"),
    "no stop at the last block": (chunks.chunk, "(realign, last, tail_stop, junction)", "(realign, tail_stop, junction)"),
    "no realignment": (chunks.chunk, "(realign, last, tail_stop, junction)", "(last, tail_stop, junction)"),
    "junction ignored": (chunks.chunk, "(realign, last, tail_stop, junction)", "(realign, last, tail_stop)"),
    "chunks end anywhere": (chunks.chunk, "end = max(floor, start)", "pass"),
    "no waiting for budget": (chunks.chunk, "or block <= widest", "or False"),
    "blocks wider than a step starve": (chunks.chunk, "or block <= widest", "or True"),
    "no checkpoint": (chunks.chunk, "if exports and", "if False and"),
    "junction blurred": (chunks.junction_stop, "junction if exact and junction <= prompt else ", ""),
    "prefill ends with the prompt": (chunks.prefill_end, "max(prompt, length - 1)", "prompt"),
    "the last token is hit, too": (lookup.common_hit, "max(len(path) - 1, 0)", "len(path)"),
    "one state group asked": (lookup.common_hit, "in geometry.states:", "in geometry.states[:1]:"),
    "junction not seen": (lookup.common_hit, "longest > length", "False"),
    "no hit inside a block": (lookup.longest_append_only, "range(inside, run, -unit)", "()"),
    "shortest state": (lookup.longest_state, "range(limit // grain * grain, 0, -grain)", "range(grain, limit + 1, grain)"),
    "no private copy": (demand.demand, " + ask.partial", ""),
    "no snapshot": (demand.demand, " + ask.snapshot", ""),
    "no block for a checkpoint": (demand.demand, "1 + ask.checkpoint", "1"),
    "free hits for nothing": (demand.demand, " + ask.unheld", ""),
    "a block for each gap": (demand.demand, "min(missing, 1 + ask.checkpoint)", "missing"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutated_policy_breaks_the_lockstep(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the engine does not share the policies of the specification, and the lockstep sees every one of them."""
    function, old, new = MUTANTS[name]
    source = inspect.getsource(function)
    assert source.count(old) == 1
    module = sys.modules[function.__module__]
    mutated: dict[str, Any] = {}
    exec(compile(source.replace(old, new), module.__name__, "exec", flags=annotations.compiler_flag), vars(module), mutated)
    monkeypatch.setattr(module, function.__name__, mutated[function.__name__])
    assert any(map(disagreement, corpus()))
