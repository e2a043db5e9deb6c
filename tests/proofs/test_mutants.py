"""Every mutant of the rules is killed or explained, and its counterexample is one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import z3

from kvproof.proofs.mutants import (
    MUTANTS,
    NEVER,
    PATCHES,
    Mutant,
    failures,
    mutated,
    run_of,
    search,
    stands,
)
from kvproof.proofs.runner import SolverUnknown
from kvproof.proofs.runs import load
from kvproof.spec.actions import ACTIONS, Action
from kvproof.spec.clauses import CLAUSES
from kvproof.spec.errors import KvproofError

NULL = MUTANTS["398-null-block-handed-out"]
RUNS = load()[0]["mutants"]
SAME = Mutant("same", "says the same in other words", "actions", "_covered", "h != holder", "negate(h == holder)")


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_killed_or_explained(name: str) -> None:
    assert bool(failures(MUTANTS[name])) is (MUTANTS[name].survives is None)


@pytest.mark.parametrize("name", MUTANTS)
def test_its_run_breaks_a_clause_on_the_real_state(name: str) -> None:
    broken = {clause for _, clause in failures(MUTANTS[name])} - {NEVER}
    run = RUNS.get(name)
    assert (run is not None) is bool(broken)
    assert run is None or stands(MUTANTS[name], run)


def test_the_list_is_read_to_its_end() -> None:
    assert len(MUTANTS) == sum(line[0] != " " for line in PATCHES.splitlines() if line) >= 25
    assert sum(mutant.museum is not None for mutant in MUTANTS.values()) >= 12


def test_every_clause_kills() -> None:
    killed = Counter(clause for mutant in MUTANTS.values() for clause in {clause for _, clause in failures(mutant)})
    assert set(killed) == {*CLAUSES, NEVER}


def test_a_rotten_mutant_is_an_error() -> None:
    for rotten in (replace(NULL, old="nothing like this"), replace(NULL, old="state"), replace(NULL, function="gone")):
        with pytest.raises(KvproofError, match=rf"mutant {NULL.name}: .* times in actions\..*, not once"):
            mutated(rotten)


def test_a_mutant_that_changes_nothing_survives() -> None:
    assert failures(SAME) == ()
    assert run_of(SAME) is None


def test_what_the_solver_does_not_know_kills_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(z3.Solver, "check", lambda self, *goals: z3.unknown)
    with pytest.raises(SolverUnknown, match="does not know"):
        failures(replace(NULL, name="unknown"))


def test_the_rules_themselves_stay_as_they_are() -> None:
    original, changed = ACTIONS["acquire"], mutated(NULL).actions["acquire"]
    assert changed.guards == original.guards
    assert changed.apply.__code__.co_code != original.apply.__code__.co_code
    assert isinstance(original, Action)
    assert mutated(NULL).clauses is CLAUSES


def test_a_run_is_found_again() -> None:
    run = search(NULL)
    assert run is not None
    assert stands(NULL, run)
    assert len(run.steps) == len(RUNS[NULL.name].steps)
