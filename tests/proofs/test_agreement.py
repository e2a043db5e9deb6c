"""The face that computes and the face that builds terms say the same: guards by name, the whole next state, every clause."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import z3
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proofs.reading import Reading, Things

from kvproof.audit.compiled import compiled
from kvproof.audit.probe import SORTS, ProbeResult, Universe
from kvproof.proofs import face
from kvproof.proofs.explore import SCOPES, Form, Scope, explore
from kvproof.proofs.face import sorts_of
from kvproof.spec.actions import ACTIONS
from kvproof.spec.clauses import CLAUSES
from kvproof.spec.state import State

READING = Reading()


class Read(Universe):
    """A universe in which each action is taken whatever its guards say, and looked at with both faces."""

    def __init__(self, rng: random.Random, *, unordered: bool, reading: Reading = READING) -> None:
        super().__init__(rng, unordered=unordered)
        self.reading = reading
        self.things: Things = {
            "Block": self.blocks,
            "Holder": self.holders,
            "Owner": self.owners,
            "Key": self.keys,
            "Content": self.contents,
        }
        self.found: list[str] = []
        self.seen: set[tuple[str, str | None]] = set()

    def take(self, name: str, arguments: Any) -> str | None:
        self.found += self.reading.differences(self.state, self.things, name, arguments)
        self.found += self.reading.clause_differences(self.state, self.things)
        refusals = self.state.refusals or []
        self.seen |= {(name, guard) for guard in refusals} or {(name, None)}
        self.state.refusals = None
        return refusals[0] if refusals else None

    def scatter(self) -> None:
        """Any state at all, legal or not, but for one thing: what is set in a layer is set in the layers above it."""
        rng, state = self.rng, self.state
        for name, (kind, (left, right)) in face.parts().items():
            part, few = getattr(state, name), rng.random() / 2
            for thing in self.things[left]:
                if kind == "Relation":
                    for other in self.things[right]:
                        if rng.random() < few:
                            part.add(thing, other)
                elif rng.random() < 0.5 or (kind == "Layer" and dict.__contains__(part.base, thing)):
                    part[thing] = rng.choice(self.things.get(right, [True, False] if right == "bool" else [0, 1, 2, 3]))
        state.completed = rng.choice((0, 1, 2))
        state.issued = state.completed + rng.choice((-1, 0, 1, 2))
        state.settle()


@settings(max_examples=60, derandomize=True, deadline=None)
@given(seed=st.integers(0, 2**32), unordered=st.booleans())
def test_the_faces_agree_on_random_runs(seed: int, unordered: bool) -> None:
    universe = Read(random.Random(seed), unordered=unordered)
    universe.scene(ProbeResult())
    for _ in range(20):
        universe.offer(ProbeResult())
    assert universe.found == []


@settings(max_examples=60, derandomize=True, deadline=None)
@given(seed=st.integers(0, 2**32), unordered=st.booleans())
def test_the_faces_agree_on_states_that_no_run_reaches(seed: int, unordered: bool) -> None:
    for index, name in enumerate(ACTIONS):
        universe = Read(random.Random(seed + index), unordered=unordered)
        universe.scatter()
        universe.offer(ProbeResult(), name)
        assert universe.found == []


def test_every_guard_is_seen_to_refuse_and_every_action_to_pass() -> None:
    """What the two tests above look at is not always the same."""
    seen: set[tuple[str, str | None]] = set()
    for seed in range(250):
        universe = Read(random.Random(seed), unordered=bool(seed % 2))
        universe.scatter() if seed % 5 == 0 else universe.scene(ProbeResult())
        for name in [*ACTIONS] if seed % 5 else []:
            universe.offer(ProbeResult(), name)
        assert universe.found == []
        seen |= universe.seen
    assert {(name, None) for name in ACTIONS} <= seen
    assert {(name, guard) for name, action in ACTIONS.items() for guard in action.guards} <= seen


# ------------------------------------------------------------------------------------------------ all states of a tiny scope


TINY: dict[str, dict[str, Any]] = {"one holder": {}, "copies": {"kinds": ("state",), "texts": ("ab",), "depth": 1}}
MISSING = {"one holder": {"move", "redirect"}, "copies": {"acquire", "finish"}}


def instances(scope: Scope, name: str, state: State) -> list[tuple[Any, ...]]:
    """Every choice of arguments, steps that are over or not there yet included."""
    steps = range(state.completed - 1, state.staging + 2)
    return list(product(*(scope.things.get(sort, steps) for sort in sorts_of(ACTIONS[name]))))


@pytest.mark.parametrize("unordered", [False, True])
@pytest.mark.parametrize("name", TINY)
def test_the_faces_agree_on_all_of_a_tiny_scope(name: str, unordered: bool) -> None:
    """Every state and every action with every choice of arguments: all guards, and what comes of it where they pass. The
    compiled actions of the audit, the third face, refuse and do the same."""
    scope = Scope(**SCOPES[name] | TINY[name], unordered=unordered)
    forms: list[Form] = []
    explore(scope, lambda depth, form: forms.append(form))
    told: list[str] = []
    straight = compiled(scope.state, lambda guard, action, values: told.append(guard))
    happened: Counter[str] = Counter()
    for form in forms:
        assert READING.clause_differences(scope.load(form), scope.things) == []
        for action in ACTIONS:
            for values in instances(scope, action, scope.load(form)):
                assert READING.differences(scope.load(form), scope.things, action, values, taken=False) == []
                if scope.state.refusals:
                    continue
                happened[action] += 1
                then = scope.form(scope.state)
                scope.load(form)
                getattr(straight, action)(*values)
                assert (told, scope.form(scope.state)) == ([], then)
    assert happened.keys() >= ACTIONS.keys() - (
        {"move", "redirect", "pin"} if name == "one holder" else {"start", "finish", "acquire"}
    )


# --------------------------------------------------------------------------------------------------------- planted differences


def shadowed(self: Any, key: Any) -> Any:
    return self.base[key]


def late(self: Any, other: Any, right: Any, target: Any, but: Any = None) -> None:
    """Reads the other relation when the term is built, which is after all writes."""
    self._becomes(lambda a, b, old: z3.Or(z3.And(b == target, other.fn(a, right)), old(a, b)))


def handed(self: Any, source: Any, target: Any) -> None:
    self._becomes(lambda a, b, old: z3.Or(z3.And(b == target, old(a, source)), old(a, b)))


PLANTED: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "a hand-over that leaves the source as it was": (face.SomeRelation, "hand_at", handed),
    "a need that is not handed over": (face.SomeRelation, "hand_of", lambda self, source, target: None),
    "a row that is added to, not set": (face.SomeRelation, "set_of", face.SomeRelation.add),
    "a row that is not cleared": (face.SomeRelation, "clear_of", lambda self, left: None),
    "a column that is not cleared": (face.SomeRelation, "clear_at", lambda self, right: None),
    "rows that are not cleared": (face.SomeRelation, "clear_of_each", lambda self, lefts: None),
    "a pair that stays": (face.SomeRelation, "remove", lambda self, left, right: None),
    "a pair that is added anyway": (face.SomeRelation, "add_if", lambda self, condition, a, b: self.add(a, b)),
    "a column that is copied too late": (face.SomeRelation, "copy_at", late),
    "a layer that does not cover what is below": (face.SomeLayer, "__getitem__", shadowed),
    "a layer that is written as if it were no layer": (face.SomeLayer, "set_where", face.SomeFunction.set_where),
    "a layer that does not sink": (face.SomeLayer, "sink", face.SomeLayer.clear),
    "a map that is not cleared": (face.SomeFunction, "clear", lambda self: None),
    "a choice the wrong way round": (face.Words, "choose", lambda self, condition, yes, no: z3.If(condition, no, yes)),
    "one of many that is none": (face.SomeRows, "some", lambda self, predicate: z3.BoolVal(False)),
    "all that is any": (face.Words, "both", lambda self, *terms: z3.Or([face.truth(term) for term in terms])),
}


def differences(reading: Reading, seeds: int) -> list[str]:
    found = []
    for seed in range(seeds):
        universe = Read(random.Random(seed), unordered=bool(seed % 2), reading=reading)
        universe.scene(ProbeResult())
        for name in ACTIONS:
            universe.offer(ProbeResult(), name)
        found += universe.found
    return found


def test_the_face_as_it_is_shows_no_difference() -> None:
    assert differences(Reading(), 10) == []


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_difference_is_found(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED[planted])
    assert differences(Reading(), 20)


def test_a_dropped_guard_and_a_changed_clause_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    universe, other = (Read(random.Random(3), unordered=False, reading=Reading()) for _ in range(2))
    for name, terms in universe.reading.guards.items():
        if name == "acquire":
            universe.reading.guards[name] = lambda *given, terms=terms: terms(*given) | {"its owner is alive": True}
    assert universe.take("acquire", [universe.holders[0], 1, universe.owners[0]])
    assert universe.found == ["acquire: guard 'its owner is alive'"]
    clause = next(iter(CLAUSES))
    other.reading.clauses[clause] = lambda *given: {clause: False}
    assert other.reading.clause_differences(other.state, other.things) == [f"clause {clause!r} of ({b},)" for b in other.blocks]


def test_what_is_set_in_a_layer_is_set_above_it() -> None:
    """What the faces may differ in where it does not hold: `Layer.sink` takes its own entries down, not those below it."""
    for seed in range(100):
        universe = Read(random.Random(seed), unordered=bool(seed % 2))
        universe.scatter() if seed % 2 else universe.scene(ProbeResult())
        for name in ACTIONS:
            universe.offer(ProbeResult(), name)
            assert set(universe.state.mid) <= set(universe.state.after)


def test_every_parameter_has_the_sort_that_the_probe_gives_it() -> None:
    for action in ACTIONS.values():
        assert [SORTS[parameter].capitalize().replace("Step", "int") for parameter in action.parameters] == [*sorts_of(action)]
