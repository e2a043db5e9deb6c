"""The terms that the symbolic face builds, read in a concrete state: each symbol means what the state holds.

A term is written down as a Python expression once, node by node, so what is compared are the very terms that the solver gets.
Quantifiers walk the things that there are; all else is the value that Python gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import z3

from kvproof.proofs.face import SomeState, World, arguments, installed, parts, taken, truth
from kvproof.spec.actions import ACTIONS
from kvproof.spec.clauses import CLAUSES
from kvproof.spec.lineage import UNKNOWN, ZERO
from kvproof.spec.state import State

Things = Mapping[str, list[Any]]

OPERATORS = {
    z3.Z3_OP_AND: " and ",
    z3.Z3_OP_OR: " or ",
    z3.Z3_OP_EQ: " == ",
    z3.Z3_OP_DISTINCT: " != ",
    z3.Z3_OP_LE: " <= ",
    z3.Z3_OP_LT: " < ",
    z3.Z3_OP_GE: " >= ",
    z3.Z3_OP_GT: " > ",
    z3.Z3_OP_ADD: " + ",
    z3.Z3_OP_SUB: " - ",
}
FIXED = {
    "answers": "{}.answers({})",
    "extends": "{}.extends({})",
    "covers": "{}.covers({})",
    "ZERO": "ZERO",
    "UNKNOWN": "UNKNOWN",
    **{name: f"state.{name}" for name in ("null", "unordered", "issued", "completed")},
}


def expression(term: Any, bound: tuple[str, ...] = ()) -> str:
    """The term as Python over `state` and `things`. Other constants are variables of their name."""
    if isinstance(term, bool | int):
        return repr(term)
    if z3.is_var(term):
        return str(bound[-1 - z3.get_var_index(term)])
    if z3.is_quantifier(term):
        assert term.num_vars() == 1
        name = f"_{len(bound)}"
        word = "all" if term.is_forall() else "any"
        return f"{word}({expression(term.body(), (*bound, name))} for {name} in things[{term.var_sort(0).name()!r}])"
    given = [expression(child, bound) for child in term.children()]
    kind, name = term.decl().kind(), term.decl().name()
    if kind in OPERATORS:
        return f"({OPERATORS[kind].join(given)})"
    if kind == z3.Z3_OP_NOT:
        return f"(not {given[0]})"
    if kind == z3.Z3_OP_IMPLIES:
        return f"(not {given[0]} or {given[1]})"
    if kind == z3.Z3_OP_ITE:
        return f"({given[1]} if {given[0]} else {given[2]})"
    if kind in (z3.Z3_OP_TRUE, z3.Z3_OP_FALSE):
        return str(kind == z3.Z3_OP_TRUE)
    if kind == z3.Z3_OP_ANUM:
        return str(term.as_long())
    assert kind == z3.Z3_OP_UNINTERPRETED, term
    if name in FIXED:
        return str(FIXED[name].format(*given))
    if name in parts():
        return f"state.{name}[{', '.join(given)}]"
    if name.endswith(".set"):
        return f"dict.__contains__(state.{name.removesuffix('.set')}, {given[0]})"
    return str(name).rstrip("?")


def function(parameters: tuple[str, ...], items: Mapping[str, str]) -> Any:
    """A function of the state, the things and the parameters, that gives each item."""
    body = ", ".join(f"{name!r}: {text}" for name, text in items.items())
    known = {"ZERO": ZERO, "UNKNOWN": UNKNOWN}
    exec(f"def read({', '.join(('state', 'things', *parameters))}):\n return {{{body}}}", known)
    return known["read"]


def tables(world: World, state: SomeState) -> dict[str, str]:
    """An expression for each relation and function: the pairs that it holds of, or its value everywhere. A layer is read
    through; where it is set is an item of its own."""
    found = {"issued": expression(state.issued), "completed": expression(state.completed)}
    with installed(world):
        for name, (kind, sorts) in parts().items():
            part = getattr(state, name)
            left, right = (z3.Const(letter, world.sorts[sort]) for letter, sort in zip("ab", sorts, strict=True))
            domain = f"for a in things[{sorts[0]!r}]"
            if kind == "Relation":
                term = expression(truth(part[left, right]))
                found[name] = f"{{(a, b) {domain} for b in things[{sorts[1]!r}] if {term}}}"
                continue
            found[name] = f"{{a: {expression(truth(part[left]))} {domain}}}"
            if kind == "Layer":
                found[f"{name}.set"] = f"{{a {domain} if {expression(truth(part.own(left)))}}}"
    return found


class Reading:
    """Every action and clause on terms, ready to be read. Made anew it sees the face as it is then."""

    def __init__(self) -> None:
        world = World()
        self.now = function((), tables(world, SomeState(world)))
        self.guards, self.then, clauses = {}, {}, {}
        for name, action in ACTIONS.items():
            world = World()
            state = SomeState(world)
            guards = taken(world, action, state, arguments(world, action))
            texts = {guard: expression(term) for guard, term in guards.items()}
            self.guards[name] = function(action.parameters, texts)
            self.then[name] = function(action.parameters, tables(world, state))
        state = SomeState(world)
        for name, clause in CLAUSES.items():
            with installed(world):
                row = [world.constant(sort, sort.capitalize()) for sort in (clause.row,) if sort != "clock"]
                texts = {name: expression(truth(clause.holds(state, *row)))}
            clauses[name] = function((clause.row,) * len(row), texts)
        self.clauses = clauses

    def refused(self, state: State, things: Things, name: str, values: Any) -> set[str]:
        """The guards that refuse by their terms."""
        return {guard for guard, passed in self.guards[name](state, things, *values).items() if not passed}

    def differences(self, state: State, things: Things, name: str, values: Any, *, taken: bool = True) -> list[str]:
        """Takes the action on the state, whatever its guards say, and tells where the terms say something else than what the
        rules did: guards by name, and the whole next state unless only guards are asked for (`taken`)."""
        expected = self.refused(state, things, name, values)
        then = self.then[name](state, things, *values) if taken or not expected else None
        state.refusals = []
        ACTIONS[name].apply(state, *values)
        state.settle()
        found = [f"{name}: guard {guard!r}" for guard in sorted(expected ^ set(state.refusals))]
        if then is not None:
            now = self.now(state, things)
            found += [f"{name}: {part}" for part in then if then[part] != now[part]]
        return found

    def clause_differences(self, state: State, things: Things) -> list[str]:
        """The clauses and rows where the term is something else than what the clause says."""
        found = []
        for name, clause in CLAUSES.items():
            rows: list[Any] = [()] if clause.row == "clock" else [(thing,) for thing in things[clause.row.capitalize()]]
            differ = [row for row in rows if self.clauses[name](state, things, *row)[name] is not clause.holds(state, *row)]
            found += [f"clause {name!r} of {row}" for row in differ]
        return found
