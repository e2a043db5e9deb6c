"""The kernel under random actions: no clause ever breaks, every action happens, every guard refuses."""

from __future__ import annotations

import inspect
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvproof.audit.checks import CHECKS, GUARDS
from kvproof.audit.probe import ProbeResult, Universe, probe
from kvproof.spec import actions, clauses
from kvproof.spec.actions import ACTIONS
from kvproof.spec.clauses import CLAUSES, broken
from kvproof.spec.errors import Refused
from kvproof.spec.lineage import UNKNOWN
from kvproof.spec.logic import OrderError
from kvproof.spec.state import Holder, Owner, State


class Kernel(RuleBasedStateMachine):
    """Hypothesis chooses the actions and a seed for their arguments, so that it can shrink the run."""

    @initialize(seed=st.integers(0, 2**16), unordered=st.booleans())
    def begin(self, seed: int, unordered: bool) -> None:
        self.universe = Universe(random.Random(seed), unordered=unordered)
        self.result = ProbeResult()
        self.universe.scene(self.result)

    @rule(name=st.sampled_from(sorted(ACTIONS)))
    def act(self, name: str) -> None:
        self.universe.offer(self.result, name)

    @invariant()
    def clauses_hold(self) -> None:
        if hasattr(self, "result"):
            assert not self.result.broken


TestKernel = Kernel.TestCase
TestKernel.settings = settings(max_examples=150, stateful_step_count=40, derandomize=True, deadline=None)


def test_every_action_happens_and_every_guard_refuses() -> None:
    result = probe(seed=1, offers=120_000)
    assert not result.broken
    assert not result.silent


def test_a_kernel_without_its_guards_breaks_clauses() -> None:
    """The negative of the two tests above: with guards only noted, random actions break most clauses."""
    found: set[str] = set()
    for seed in range(400):
        universe = Universe(random.Random(seed), unordered=bool(seed % 2), strict=False)
        universe.scene(ProbeResult())
        universe.state.refusals = []
        for _ in range(40):
            universe.offer(ProbeResult())
            found |= {name for name, _ in broken(universe.state, universe.blocks, universe.holders)}
    by_construction = {  # kept by what the actions write, whatever their guards say
        "content changes only where something is staged",
        "a staged use is a use, and no use is later",
    }
    assert found == CLAUSES.keys() - by_construction


def test_the_registries_agree() -> None:
    guards = {guard for action in ACTIONS.values() for guard in action.guards}
    assert guards == GUARDS.keys()
    assert set(GUARDS.values()) <= CHECKS.keys()
    assert {clause.check for clause in CLAUSES.values()} <= CHECKS.keys()


@pytest.mark.parametrize("name", sorted(ACTIONS))
def test_an_action_is_short_and_says_where_it_is_seen(name: str) -> None:
    function = ACTIONS[name].apply
    assert len(inspect.getsource(function).splitlines()) <= 40
    assert "Seen in:" in (function.__doc__ or "")


def test_reading_after_writing_is_an_error() -> None:
    state = State(strict=True)
    state.holds.add(Holder(0, ("h", 0)), 1)
    with pytest.raises(OrderError, match="read after it was written"):
        state.holds.at(1)
    state.settle()
    assert len(state.holds.at(1)) == 1


def test_a_guard_is_a_truth_value() -> None:
    with pytest.raises(TypeError, match="neither True nor False"):
        State().require("a guard", 1)


def test_a_refused_action_changes_nothing() -> None:
    state, owner, holder = State(strict=True), Owner("request", "a"), Holder(0, ("h", 0))
    with pytest.raises(Refused, match="its owner is alive"):
        actions.acquire(state, holder, 1, owner)
    state.settle()
    assert state.free(1) is True


def test_the_horizon_is_what_tells_the_two_disciplines_apart() -> None:
    """A block that a step in flight writes may be let go where device order protects it, not where outside writers exist."""
    for unordered in (False, True):
        universe = Universe(random.Random(0), unordered=unordered)
        state, owner, holder, key = universe.state, universe.owners[0], universe.holders[0], universe.keys[0]
        for name, *arguments in (
            ("start", owner),
            ("acquire", holder, 1, owner),
            ("stage_write", holder, 1, key.content, key),
            ("issue",),
        ):
            assert universe.take(name, arguments) is None
        guard = universe.take("release", [holder, 1])
        assert guard == ("what is in use stays held" if unordered else None)
        assert state.after[1] is not UNKNOWN


def test_a_cancelled_use_leaves_no_trace_beside_the_fence_of_an_earlier_step() -> None:
    """Once a false alarm: a request, preempted in its own step, whose block an earlier step's copy still pins."""
    universe = Universe(random.Random(0), unordered=True)
    owner, (one, two, *_), key = universe.owners[0], universe.holders, universe.keys[0]
    write = ("stage_write", one, 1, key.content, key)
    for name, *arguments in (
        ("start", owner),
        ("acquire", one, 1, owner),
        write,
        ("issue",),
        ("pin", two, 1, 2),
        ("issue",),
        write,
        ("cancel", one, 1),
        ("defer", one, 1, 2),
    ):
        assert universe.take(name, arguments) is None


def test_quiet_lists_who_still_holds() -> None:
    universe = Universe(random.Random(0), unordered=False)
    assert not clauses.quiet(universe.state)
    universe.take("start", [universe.owners[0]])
    universe.take("acquire", [universe.holders[0], 1, universe.owners[0]])
    assert len(clauses.quiet(universe.state)) == 1
