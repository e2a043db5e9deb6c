"""Shortest runs: found on the symbols, taken on the real state, and never claimed where the solver did not know."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvproof.proofs.obligations import Tables
from kvproof.proofs.runs import Run, Runs, digest, load, replay, save, shortest
from kvproof.proofs.scope import Rules, Scope, named
from kvproof.spec.actions import ACTIONS, Action
from kvproof.spec.state import State

GUARD = ("finish", "it holds nothing but fences")
RUN = Run((("start", ("r",)), ("acquire", ("h1", "1", "r")), ("finish", ("r",))), False, GUARD, 2)


@pytest.fixture(scope="module")
def rules() -> Rules:
    some = ("start", "finish", "acquire", "release", "stage_zero", "issue", "complete")
    return Rules(Scope(named(blocks=1, holders=2)), Tables({name: ACTIONS[name] for name in some}))


def test_without_a_guard_a_clause_breaks_after_the_fewest_actions(rules: Rules) -> None:
    run, search = shortest(rules, rules.broken, 5, 60.0, GUARD)
    assert run is not None
    assert replace(run, unordered=False) == RUN
    assert (search.depth, search.gave_up) == (2, "")
    assert [moment.refused for moment in replay(RUN)] == [(), (), (GUARD[1],)]
    assert [bool(moment.broken) for moment in replay(RUN)] == [False, False, True]


def test_with_all_guards_there_is_none_and_the_search_says_how_far_it_looked(rules: Rules) -> None:
    run, search = shortest(rules, rules.broken, 4, 60.0)
    assert (run, search.depth, search.gave_up) == (None, 4, "")


def test_a_search_without_time_says_that_it_does_not_know(rules: Rules) -> None:
    run, search = shortest(rules, rules.broken, 30, 0.0, GUARD)
    assert run is None
    assert search.depth < 2
    assert "did not know" in search.gave_up


def test_a_run_may_be_asked_for_by_any_goal(rules: Rules) -> None:
    run, _ = shortest(rules, rules.does["release"], 5, 60.0)
    assert run is not None
    assert [name for name, _ in run.steps] == ["start", "acquire", "release"]


def test_changed_rules_are_searched_and_taken_like_the_real_ones() -> None:
    def complete(state: State) -> None:
        state.completed = state.completed + 1

    changed = Tables({"issue": ACTIONS["issue"], "complete": Action("complete", complete, ())})
    rules = Rules(Scope(named(1, 1)), changed)
    run, _ = shortest(rules, rules.broken, 3, 60.0)
    assert run is not None
    assert run.steps == (("complete", ()),)
    assert replay(run, changed)[-1].broken == (("steps complete after they were issued", "clock"),)


def test_runs_are_kept_in_plain_words(tmp_path: Path) -> None:
    runs: Runs = {"guards": {" / ".join(GUARD): RUN}, "actions": {}, "clauses": {}, "mutants": {}}
    save(runs, tmp_path / "runs.json")
    assert '"acquire: holder h1, block 1, owner r"' in (tmp_path / "runs.json").read_text()
    assert load(tmp_path / "runs.json") == (runs, True)


def test_runs_of_other_rules_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    save({"guards": {" / ".join(GUARD): RUN}}, path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rules": "other"}))
    runs, fresh = load(path)
    assert fresh is False
    save(runs, path, fresh=fresh)
    assert load(path) == (runs, False)
    assert load(tmp_path / "none.json") == ({"guards": {}, "actions": {}, "clauses": {}, "mutants": {}}, False)
    assert len(digest()) == 64
