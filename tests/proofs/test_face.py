"""The symbolic face refuses what would make a proof wrong in silence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import z3

from kvproof.proofs.face import Function, Layer, Relation, SomeState, World, arguments, empty, installed, parts, taken
from kvproof.spec import logic
from kvproof.spec.actions import ACTIONS, Action
from kvproof.spec.logic import OrderError
from kvproof.spec.state import Block, Holder, State


def action(function: Callable[..., None], *parameters: str) -> Action:
    return Action(function.__name__, function, parameters)


def test_a_term_is_no_truth_value_inside_an_action() -> None:
    def branches(state: State, block: Block) -> None:
        if block == state.null:
            state.zeroed[block] = True

    world = World()
    with pytest.raises(TypeError, match="neither True nor False"):
        taken(world, action(branches, "block"), SomeState(world), arguments(world, action(branches, "block")))
    assert logic.symbolic is None


def test_a_guard_after_a_write_is_an_error() -> None:
    def late(state: State, block: Block) -> None:
        state.zeroed[block] = True
        state.require("late", block != state.null)

    world = World()
    with pytest.raises(OrderError, match="'late' comes after a write"):
        taken(world, action(late, "block"), SomeState(world), arguments(world, action(late, "block")))


def test_a_read_after_a_write_is_an_error() -> None:
    def rereads(state: State, block: Block) -> None:
        state.before[block] = state.zero
        state.mid[block] = state.before[block]

    world = World()
    with pytest.raises(OrderError, match="is read after it was written"):
        taken(world, action(rereads, "block"), SomeState(world), arguments(world, action(rereads, "block")))


def test_each_quantifier_binds_a_variable_of_its_own() -> None:
    """Two nested quantifiers over one sort: with a shared variable the formula would say that every two blocks are equal."""
    world = World()
    state = SomeState(world)
    with installed(world):
        held = state.holds.of(world.constant("h", "Holder"))
        term = logic.every(held, lambda b: logic.every(held, lambda c: b == c))
    solver = z3.Solver()
    solver.add(z3.Not(term))
    assert solver.check() == z3.sat


def test_every_part_of_the_state_has_a_symbol() -> None:
    state = SomeState(World())
    for name, (kind, sorts) in parts().items():
        assert isinstance(getattr(state, name), {"Relation": Relation, "Layer": Layer}.get(kind, Function))
        assert len(sorts) == 2
    real = {name for name, part in vars(State()).items() if hasattr(part, "clear") and name != "refusals"}
    assert set(parts()) == real


def test_the_start_is_a_state_without_holders() -> None:
    world = World()
    start = empty(world)
    holder, block = world.constant("h", "Holder"), world.constant("b", "Block")
    assert z3.is_false(z3.simplify(start.holds[holder, block]))
    assert z3.simplify(start.after[block] == start.before[block]).eq(z3.BoolVal(True))


def test_every_parameter_of_an_action_has_a_sort() -> None:
    world = World()
    for entry in ACTIONS.values():
        values = arguments(world, entry)
        assert [str(value.sort()) for value in values].count("Bool") == 0
        assert len(values) == len(entry.parameters)


def test_a_holder_is_compared_by_identity_on_both_faces() -> None:
    world = World()
    one, other = world.constant("h", "Holder"), world.constant("g", "Holder")
    assert z3.is_bool(one == other)
    assert Holder(0, ()) != Holder(0, ())
