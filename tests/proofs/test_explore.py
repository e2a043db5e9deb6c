"""The states that the explorer finds: how many there are, that no clause breaks, and that leaving names out loses none."""

from __future__ import annotations

import random
from collections import Counter
from itertools import permutations, product
from math import factorial, perm, prod
from typing import Any

import pytest

from kvproof.proofs.explore import SCOPES, Form, Scope, counted, explore, pinned, spoken, unnamed
from kvproof.proofs.face import sorts_of
from kvproof.spec import clauses
from kvproof.spec.actions import ACTIONS
from kvproof.spec.clauses import Clause
from kvproof.spec.errors import Refused
from kvproof.spec.state import State


@pytest.mark.parametrize("unordered", [False, True])
@pytest.mark.parametrize("name", SCOPES)
def test_golden_counts(name: str, unordered: bool) -> None:
    label, counts = counted(name, unordered=unordered)
    assert counts == pinned()[label]


def test_every_action_happens_somewhere() -> None:
    labels = [f"{name}, ordered" for name in SCOPES]
    assert {name for label in labels for name in pinned()[label]["happened"]} == ACTIONS.keys()


def orbit(scope: Scope, form: Form) -> int:
    """How many states with names have this form."""
    _, alive, cells = form
    owners = len({owned(form, order) for order in permutations(range(len(alive)))})
    alike = [n for things in (cells, *(rows for _, rows in cells)) for n in Counter(things).values()]
    ways = factorial(scope.blocks) * perm(scope.holders, sum(len(rows) for _, rows in cells))
    return owners * ways // prod(map(factorial, alike))


def owned(form: Form, order: tuple[int, ...]) -> Form:
    """The form with other names of owners and the same blocks in some order."""
    names = dict(enumerate(order)) | {-1: -1}
    cells = [(values, tuple(sorted((names[row[0]], *row[1:]) for row in rows))) for values, rows in form[2]]
    return form[0], tuple(form[1][order.index(i)] for i in range(len(order))), tuple(sorted(cells))


SMALL: list[dict[str, Any]] = [
    {"blocks": 2, "holders": 2, "owners": "rs", "depth": 4},
    {"blocks": 2, "holders": 3, "flying": 2, "depth": 4},
    {"blocks": 3, "holders": 1, "kinds": ("rows",), "texts": ("ab", "abcd"), "depth": 4},
    {"blocks": 1, "holders": 2, "depth": 5},
    {"blocks": 1, "holders": 1, "owners": "rs", "depth": 6},
]


@pytest.mark.parametrize("unordered", [False, True])
@pytest.mark.parametrize("sizes", SMALL, ids=str)
def test_leaving_names_out_loses_no_state(sizes: dict[str, Any], unordered: bool) -> None:
    """As many states with names as the forms without them stand for, after any number of actions; and the same forms."""
    scope = Scope(**sizes, unordered=unordered)
    stood_for: Counter[int] = Counter()
    forms = set()

    def weigh(depth: int, form: Form) -> None:
        stood_for[depth] += orbit(scope, form)
        forms.add(form)

    explore(scope, weigh)
    seen = set()
    found = explore(Scope(**sizes, unordered=unordered, named=True), lambda depth, form: seen.add(unnamed(form)))
    assert found.depths == [stood_for[depth] for depth in range(len(found.depths))]
    assert seen == forms


@pytest.mark.parametrize("unordered", [False, True])
def test_leaving_names_out_loses_no_successor(unordered: bool) -> None:
    """The same near copies: whatever names the arguments have, what comes of them is among what comes of those offered."""
    sizes = SCOPES["copies"] | {"depth": 1}
    scope = Scope(**sizes, unordered=unordered)
    forms: list[Form] = []
    explore(scope, lambda depth, form: forms.append(form))
    for form in forms:
        scope.named = False
        offered = {(name, then) for name, _, then in scope.next(form)}
        scope.named = True
        assert {(name, unnamed(then)) for name, _, then in scope.next(form)} == offered


@pytest.mark.parametrize("unordered", [False, True])
def test_no_choice_is_passed_over(unordered: bool) -> None:
    """The arguments that guards let pass are the same when all are tried."""
    scope = Scope(**SCOPES["copies"] | {"depth": 0, "kinds": ("rows",)}, unordered=unordered)
    for name in ACTIONS:
        scope.load(scope.start)
        offered = []
        for chosen in scope.choices(name):
            offered.append(chosen)
            scope.load(scope.start)
        values = scope.things | {"int": range(3)}
        values["Holder"] = values["Holder"][:5]
        tried = []
        for chosen in product(*(values[sort] for sort in sorts_of(ACTIONS[name]))):
            try:
                ACTIONS[name].apply(scope.load(scope.start), *chosen)
            except Refused:
                continue
            if name != "hand_over" or scope.state.holds.of(chosen[0]):
                tried.append(chosen)
        assert offered == tried


@pytest.mark.parametrize("unordered", [False, True])
def test_a_form_keeps_all_that_matters(unordered: bool) -> None:
    """A long run, and the same run on a state that is made anew from its form before each action: same refusals, same forms."""
    rng = random.Random(7)
    sizes: dict[str, Any] = SCOPES["all kinds"] | {"unordered": unordered, "named": True}
    happened: Counter[str] = Counter()
    for _ in range(30):
        scope = Scope(**sizes)
        state, form = State(unordered=unordered, strict=True), scope.start
        for _ in range(150):
            name = rng.choice([*ACTIONS, "issue", "complete", "acquire", "pin", "redirect", "move"])
            if name == "issue" and form[0] == scope.flying:
                continue
            chosen = [rng.choice(scope.things.get(sort, [0, 1, 2])) for sort in sorts_of(ACTIONS[name])]
            if rng.random() < 0.7:  # a choice that passes, where there is one
                scope.load(form)
                chosen = list(rng.choice([[*c] for c in passing(scope, name, form)] or [chosen]))
            if name == "hand_over" and not state.holds.of(chosen[0]):
                continue
            later = [
                value + state.completed if sort == "int" else value
                for sort, value in zip(sorts_of(ACTIONS[name]), chosen, strict=True)
            ]
            results: list[str | None] = []
            for which, values in ((state, later), (scope.load(form), chosen)):
                try:
                    ACTIONS[name].apply(which, *values)
                    results.append(None)
                    happened[name] += 1
                except Refused as refusal:
                    results.append(refusal.guard)
                which.settle()
            assert results[0] == results[1]
            form = scope.form(state)
            assert form == scope.form(scope.state)
    assert happened.keys() == ACTIONS.keys()


def passing(scope: Scope, name: str, form: Form) -> list[tuple[Any, ...]]:
    found = []
    for chosen in scope.choices(name):
        found.append(chosen)
        scope.load(form)
    return found


def test_a_broken_clause_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative: something that is not always true, after the fewest actions that make it false."""
    never = Clause("no block is ever copied", "block", "endpoint-held", lambda state, block: not state.copied[block])
    monkeypatch.setitem(clauses.CLAUSES, never.name, never)
    found = explore(Scope(**SCOPES["copies"]))
    assert {clause for clause, *_ in found.broken} == {never.name}
    assert len(found.depths) == 2


def test_a_lost_guard_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative: an action without one of its guards breaks a clause."""
    asked = State.require
    monkeypatch.setattr(
        State, "require", lambda self, guard, term: guard == "what is in use stays held" or asked(self, guard, term)
    )
    found = explore(Scope(2, 2, unordered=True, depth=5))
    assert {clause for clause, *_ in found.broken} == {
        "a block that is used beyond the horizon is held by a holder that reaches that use"
    }


def test_guards_are_asked_about_what_they_speak_of() -> None:
    assert spoken()["stage_write"]["the holder is live on the block"] == 1
    assert spoken()["stage_write"]["the writer gets what it relies on"] == 3
    assert spoken()["complete"]["a step is in flight"] == -1
