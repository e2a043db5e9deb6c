"""The bounds of `kvproof.proofs.liveness` hold, their witnesses exist, and a rule that breaks a bound refutes its theorem."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from kvproof.audit.probe import ProbeResult, Universe
from kvproof.proofs import liveness
from kvproof.proofs.obligations import Obligation
from kvproof.proofs.runner import solve
from kvproof.spec import actions
from kvproof.spec.actions import ACTIONS, Action
from kvproof.spec.clauses import CLAUSES
from kvproof.spec.errors import Refused
from kvproof.spec.state import State

FAMILIES = [liveness.fences, liveness.leaks, liveness.gains, liveness.queue]


def refuted(family: Callable[[], Any]) -> set[tuple[str, ...]]:
    """Theorems that do not hold and witnesses that are not there."""
    return {obligation.name for obligation in family() if solve(obligation.smt).said != obligation.expect}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_bound_holds(family: Callable[[], Any]) -> None:
    assert refuted(family) == set()


def test_names_are_unique_and_every_action_is_asked_about() -> None:
    found: list[Obligation] = list(liveness.liveness())
    assert len({obligation.name for obligation in found}) == len(found)
    assert {obligation.name[1] for obligation in found if obligation.name[0] == "a fence stays"} == ACTIONS.keys()


# ----------------------------------------------------------------------------------------------------- rules that break bounds


def pin_again(state: State, holder: Any, block: Any, until: Any) -> None:
    """Prolongs a fence that is there."""
    state.fence[holder] = until


def unissue(state: State) -> None:
    """A step that is done is not."""
    state.completed = state.completed - 1


def expire_late(state: State, holder: Any, block: Any) -> None:
    """One step later than it may."""
    state.require("the fence is behind the horizon", state.fence[holder] < state.horizon)
    state.holds.remove(holder, block)


def release_used(state: State, holder: Any, block: Any) -> None:
    """Whatever is still in use."""
    state.require("the holder is live on the block", state.live(holder, block))
    state.holds.remove(holder, block)


BROKEN: dict[str, tuple[str, Callable[..., None], Callable[[], Any], set[tuple[str, ...]]]] = {
    "a fence that is prolonged": ("pin", pin_again, liveness.fences, {("a fence stays", "pin")}),
    "a clock that runs backwards": (
        "complete",
        unissue,
        liveness.fences,
        {("a fence stays", "complete"), ("a step completes",)},
    ),
    "an end that comes late": ("expire", expire_late, liveness.fences, {("a fence ends",)}),
    "an end that comes late leaks": ("expire", expire_late, liveness.leaks, {("no leak",)}),
    "a release of what is in use": ("release", release_used, liveness.gains, {("nothing now", "release")}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_rule_that_breaks_a_bound_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    which, rule, family, expected = BROKEN[name]
    hints = actions.ACTIONS[which].apply.__annotations__
    rule.__annotations__.update({name: hint for name, hint in hints.items() if name in rule.__annotations__})
    monkeypatch.setitem(ACTIONS, which, Action(which, rule, ACTIONS[which].parameters))
    assert refuted(family) == expected


def without(clause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves from the other clauses. The table itself stays: put back, the clause would be the last one for other tests."""
    monkeypatch.setattr(liveness, "CLAUSES", {name: entry for name, entry in CLAUSES.items() if name != clause})


@pytest.mark.parametrize(
    ("clause", "expected"),
    [
        ("a fence ends with a step that exists", {("the bound",)}),
        ("steps complete after they were issued", {("a fence ends",)}),
    ],
)
def test_the_bound_rests_on_its_clause(clause: str, expected: set[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    without(clause, monkeypatch)
    assert refuted(liveness.fences) == expected


def test_without_orphan_clause_somebody_may_hold_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    without("a holder is a fence or belongs to somebody alive", monkeypatch)
    assert refuted(liveness.leaks) == {("no leak",), ("no load is left",)}


# --------------------------------------------------------------------------------------------------------------- the same, run


class Handing(Universe):
    """A universe in which only a holder that holds something is handed over."""

    def take(self, name: str, arguments: Any) -> str | None:
        if name == "hand_over" and not self.state.holds.of(arguments[0]):
            return "the holder holds nothing"
        return super().take(name, arguments)


def test_who_holds_nothing_may_finish() -> None:
    universe = Universe(random.Random(0), unordered=False)
    owner, holder = universe.owners[0], universe.holders[0]
    for name, *values in (("start", owner), ("hand_over", holder, owner)):
        universe.take(name, values)
    assert universe.take("finish", [owner]) is None


@pytest.mark.parametrize("unordered", [False, True])
def test_runs_end_with_nothing_held(unordered: bool) -> None:
    """After any run: everybody lets go, then as many completions as steps are in flight and one more, and all is free."""
    longest = 0
    for seed in range(150):
        universe = Handing(random.Random(seed), unordered=unordered)
        state = universe.state
        universe.scene(ProbeResult())
        for _ in range(30):
            universe.offer(ProbeResult())
        for holder, block in state.holds.pairs():
            for name, values in (("cancel", (holder, block)), ("defer", (holder, block, state.staging))):
                if state.loading.of(holder):
                    universe.take("spoil", [block, universe.contents[0]])
                if not state.fenced[holder]:
                    universe.take(name, values)
        for owner in universe.owners:
            assert universe.take("finish", [owner]) is None
        bound, waited = state.issued - state.completed + 1, 0
        assert universe.take("issue", []) is None
        while state.holds.pairs():
            for holder, block in state.holds.pairs():
                universe.take("expire", [holder, block])
            if state.holds.pairs():
                assert universe.take("complete", []) is None
                waited += 1
        assert waited <= bound
        longest = max(longest, waited)
    assert longest > 0 or not unordered


@pytest.mark.parametrize("unordered", [False, True])
def test_a_preemption_that_gives_nothing(unordered: bool) -> None:
    """The run behind the witness: a victim whose only block is in use. Where the device's order protects, it is not stuck."""
    universe = Universe(random.Random(0), unordered=unordered)
    state, owner, holder, key = universe.state, universe.owners[0], universe.holders[0], universe.keys[0]
    for name, *values in (
        ("start", owner),
        ("acquire", holder, 1, owner),
        ("stage_write", holder, 1, key.content, key),
        ("issue",),
    ):
        assert universe.take(name, values) is None
    if not unordered:
        assert universe.take("release", [holder, 1]) is None
        assert state.free(1)
        return
    with pytest.raises(Refused, match="what is in use stays held"):
        ACTIONS["release"].apply(state, holder, 1)
    state.settle()
    assert universe.take("defer", [holder, 1, 1]) is None
    assert not state.free(1)
    assert universe.take("complete", []) is None
    assert universe.take("expire", [holder, 1]) is None
    assert state.free(1)


# ------------------------------------------------------------------------------------------------------------------- the queue


def lateness(seed: int, *, empty: bool) -> int:
    """How many completions an entry waits beyond its own step, at most, in a list that is emptied from its front. Copies may
    be staged in a step without tokens (`empty`), which those who number the steps for fences do not count."""
    rng = random.Random(seed)
    issued = completed = worst = 0
    waiting: list[int] = []
    for _ in range(80):
        if rng.random() < 0.3 and completed < issued:
            waiting.append(issued)
        elif rng.random() < 0.5:
            if rng.random() < 0.5:
                waiting.append(issued + 1)
            issued += not (empty and rng.random() < 0.5)
        elif completed < issued:
            completed += 1
            while waiting and waiting[0] <= completed:
                worst = max(worst, completed - waiting.pop(0))
    return worst


def test_a_queue_is_late_by_one_and_only_after_a_step_without_tokens() -> None:
    assert max(lateness(seed, empty=False) for seed in range(200)) == 0
    assert max(lateness(seed, empty=True) for seed in range(200)) == 1
