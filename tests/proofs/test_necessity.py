"""Every guard is necessary, and what is said to show it does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvproof.proofs.necessity import faults, guards, search, unmissed
from kvproof.proofs.obligations import Tables
from kvproof.proofs.runs import load, replay
from kvproof.spec.actions import ACTIONS, DEVICE_ORDER, Action
from kvproof.spec.state import State

RUNS = load()[0]["guards"]


def test_the_runs_were_found_under_the_rules_as_they_stand() -> None:
    assert load()[1], "the rules have changed: run `kvproof prove --necessity`"


def test_every_guard_has_a_run_or_keeps_the_order_of_the_device() -> None:
    assert {" / ".join(guard) for guard in guards() if guard[1] not in DEVICE_ORDER} == set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_without_the_guard_a_clause_breaks_and_with_it_the_last_action_is_refused(name: str) -> None:
    run = RUNS[name]
    assert " / ".join(run.dropped or ()) == name
    assert faults(run) == []
    assert replay(run)[-1].refused == (name.partition(" / ")[2],)
    assert run.bound < len(run.steps)


def test_no_clause_misses_what_is_explained() -> None:
    ordered = [guard for guard in guards() if guard[1] in DEVICE_ORDER]
    assert unmissed(Tables({name: ACTIONS[name] for name, _ in ordered})) == dict.fromkeys(ordered, False)


def complete(state: State) -> None:
    state.require("a step is in flight", state.completed < state.issued)
    state.require("no step is done that was not issued", state.completed <= state.issued)
    state.completed = state.completed + 1


def test_a_superfluous_guard_is_proved_so_and_has_no_run() -> None:
    rules = Tables({"issue": ACTIONS["issue"], "complete": Action("complete", complete, ())})
    superfluous = ("complete", "no step is done that was not issued")
    assert unmissed(rules) == {superfluous: True}
    found = dict(search([*guards(rules)], rules, depth=4, seconds=60.0))
    assert found.pop(superfluous) == 4
    assert [(guard, faults(run, rules)) for guard, run in found.items() if not isinstance(run, int)] == [
        (("complete", "a step is in flight"), [])
    ]


def test_rules_that_break_by_themselves_are_an_error() -> None:
    def broken(state: State) -> None:
        state.completed = state.completed + 1

    with pytest.raises(RuntimeError, match="with all guards in place a clause breaks"):
        list(search([], Tables({"complete": Action("complete", broken, ())}), depth=2, seconds=60.0))


def test_a_damaged_run_is_seen() -> None:
    run = RUNS["share / its owner is alive"]
    assert faults(replace(run, steps=run.steps[:-1])) == ["no clause breaks", "the last action does not violate the guard"]
    assert faults(replace(run, steps=run.steps[1:]))[0].startswith("action 1 is refused: ")
    assert faults(replace(run, dropped=("share", "the block answers the key")))[0].endswith("refused: its owner is alive")
    assert faults(replace(run, steps=(("start", ("nobody",)), *run.steps[1:])))[0].startswith("it cannot be taken: ")
    assert faults(replace(run, steps=(*run.steps, run.steps[0])))[0].endswith(replay(run)[-1].broken[0][0])
