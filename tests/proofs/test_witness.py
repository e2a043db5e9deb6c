"""Every action can happen and every premise can hold, so no theorem is empty."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvproof.proofs import witness
from kvproof.proofs.obligations import Tables
from kvproof.proofs.runs import Run, load
from kvproof.spec.actions import ACTIONS
from kvproof.spec.clauses import CLAUSES
from kvproof.spec.state import State

RUNS, FRESH = load()
STEPS = {
    1: "start pin issue",
    2: "finish acquire expire hand_over move stage_zero complete",
    3: "release defer stage_write stage_read stage_load cancel begin_load spoil",
    4: "forget publish promote redirect stage_read_state end_load",
    5: "share retract",
}
PREMISE_STEPS = {
    1: "null_is_inert one_block_per_holder fences_are_bounded",
    2: "untouched_content_stays used_blocks_stay_held endpoints_are_pinned uses_are_counted no_orphans clock_runs_forward",
    3: "needs_are_met loads_are_alone",
    4: "keys_are_true state_reads_are_met reads_are_uses",
    5: "settled_keys_are_ready retired_keys_stay_away",
}


def test_every_action_and_clause_has_a_witness() -> None:
    assert FRESH, "the rules have changed: run `kvproof prove --necessity`"
    assert witness.lacking(RUNS) == []


def test_the_number_of_actions_that_each_needs() -> None:
    actions = {name: len(run.steps) for name, run in RUNS["actions"].items()}
    clauses = {CLAUSES[name].holds.__name__: len(run.steps) for name, run in RUNS["clauses"].items()}
    for found, pinned in ((actions, STEPS), (clauses, PREMISE_STEPS)):
        assert found == {name: steps for steps, names in pinned.items() for name in names.split()}
    assert all(run.bound == len(run.steps) - 1 for family in ("actions", "clauses") for run in RUNS[family].values())


def test_a_search_finds_them_again() -> None:
    assert {name: len(run.steps) for (_, name), run in witness.search() if isinstance(run, Run)} == {
        name: len(run.steps) for family in ("actions", "clauses") for name, run in RUNS[family].items()
    }


def test_a_premise_that_cannot_hold_is_reported() -> None:
    def impossible(state: State) -> object:
        return state.completed > state.issued

    (name,) = (name for name, clause in CLAUSES.items() if clause.row == "clock")
    actions = {action: ACTIONS[action] for action in ("issue", "complete")}
    found = dict(witness.search(Tables(actions, {name: CLAUSES[name]}), {name: impossible}, depth=4, seconds=60.0))
    assert found["clauses", name] == 4
    run = RUNS["clauses"][name]
    assert witness.faults("clauses", name, run) == []
    assert witness.faults("clauses", name, run, premises=witness.PREMISES | {name: impossible}) == [
        "the premise does not hold after it"
    ]


def test_a_damaged_witness_is_seen() -> None:
    run = RUNS["actions"]["share"]
    assert witness.faults("actions", "share", replace(run, steps=run.steps[:-1])) == ["the last action is not share"]
    assert witness.faults("actions", "share", replace(run, steps=run.steps[-1:]))[0].startswith("action 1 is refused: ")
    assert witness.faults("actions", "share", replace(run, steps=(("share", ()),)))[0].startswith("it cannot be taken: ")
    runs = {**RUNS, "actions": {name: its for name, its in RUNS["actions"].items() if name != "share"}}
    assert witness.lacking(runs) == ["share"]


@pytest.mark.parametrize("name", CLAUSES)
def test_each_clause_says_what_its_premise_is(name: str) -> None:
    assert name in witness.PREMISES
