"""The symbolic face of `kvproof.spec.logic`: the very actions and clauses of spec/, run on z3 terms.

A relation or function of the state is here a Python function from terms to a term, and a write wraps it. So the state after
an action is a substitution into the state before it: no primed symbols and no frame axioms. Methods have the names and the
meaning of those in `logic`; `tests/proofs/test_agreement.py` holds both faces together.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import z3

from kvproof.spec import logic
from kvproof.spec.actions import Action
from kvproof.spec.lineage import UNKNOWN, ZERO
from kvproof.spec.logic import OrderError, watched
from kvproof.spec.state import State

Expr = Any  # a z3 term, or a Python bool or int where its value is known
SORTS = ("Block", "Holder", "Owner", "Key", "Content")


class World:
    """What formulas speak of, without bounds: five uninterpreted sorts, integers for steps, real quantifiers.

    declarations: everything that a formula may name, by name, in order of birth.
    """

    def __init__(self) -> None:
        self.sorts = {name: z3.DeclareSort(name) for name in SORTS} | {"int": z3.IntSort(), "bool": z3.BoolSort()}
        self.declarations: dict[str, Any] = {}
        self.bound = 0  # variables bound so far: each quantifier has its own, since shared ones capture
        self.null = self.constant("null", "Block")
        self.contents = {ZERO: self.constant("ZERO", "Content"), UNKNOWN: self.constant("UNKNOWN", "Content")}
        self.unordered = self.constant("unordered", "bool")
        self.answers = self.function("answers", "Content", "Key", "bool")
        self.extends = self.function("extends", "Content", "Content", "bool")
        self.covers = self.function("covers", "Key", "Key", "bool")

    def function(self, name: str, *sorts: str) -> Callable[..., Expr]:
        made = self.declarations[name] = z3.Function(name, *(self.sorts[sort] for sort in sorts))
        return made  # type: ignore[no-any-return]

    def constant(self, name: str, sort: str) -> Expr:
        return self.function(name, sort)()

    def variable(self, sort: str) -> Expr:
        self.bound += 1
        return z3.Const(f"{sort.lower()}.{self.bound}", self.sorts[sort])

    def every(self, sorts: str, predicate: Callable[..., Expr]) -> Expr:
        """Of all rows of the sorts, which are named in the order in which the predicate takes them."""
        rows = [self.variable(sort) for sort in sorts.split()]
        return z3.ForAll(rows, truth(predicate(*rows)))

    def some(self, sort: str, predicate: Callable[[Expr], Expr]) -> Expr:
        row = self.variable(sort)
        return z3.Exists([row], truth(predicate(row)))

    def axioms(self) -> dict[str, Expr]:
        """What the proofs assume of contents and keys. `tests/proofs/test_axioms.py` shows each for `spec.lineage`."""
        return {
            "nothing known answers no key": self.every(
                "Key", lambda k: z3.And([z3.Not(self.answers(c, k)) for c in self.contents.values()])
            ),
            "what extends a content answers its keys": self.every(
                "Content Content Key",
                lambda new, old, k: z3.Implies(z3.And(self.extends(new, old), self.answers(old, k)), self.answers(new, k)),
            ),
            "what answers a key answers all that it covers": self.every(
                "Content Key Key",
                lambda c, k, need: z3.Implies(z3.And(self.covers(k, need), self.answers(c, k)), self.answers(c, need)),
            ),
        }


def truth(term: Expr) -> Expr:
    return z3.BoolVal(term) if isinstance(term, bool) else term


class Words:
    """The words of `logic` on terms."""

    def __init__(self, world: World) -> None:
        self.answers, self.extends, self.covers = world.answers, world.extends, world.covers

    def both(self, *terms: Expr) -> Expr:
        return z3.And([truth(term) for term in terms])

    def either(self, *terms: Expr) -> Expr:
        return z3.Or([truth(term) for term in terms])

    def negate(self, term: Expr) -> Expr:
        return z3.Not(term)

    def choose(self, condition: Expr, yes: Expr, no: Expr) -> Expr:
        return z3.If(condition, yes, no)


@contextmanager
def installed(world: World) -> Iterator[None]:
    """Inside, the words of `logic` build terms of this world, and no term passes for a truth value of Python."""

    def refuse(term: Any) -> bool:
        raise TypeError(f"{term} is a term, neither True nor False: use both, either, negate or choose")

    with patch.object(logic, "symbolic", Words(world)), patch.object(z3.BoolRef, "__bool__", refuse):
        yield


# ------------------------------------------------------------------------------------------------- relations and functions


class SomeRows:
    """One row or column of a relation, as it was when it was asked for."""

    def __init__(self, world: World, sort: str, member: Callable[[Expr], Expr]) -> None:
        self.world, self.sort, self.member = world, sort, member

    def every(self, predicate: Callable[[Expr], Expr]) -> Expr:
        return self.world.every(self.sort, lambda row: z3.Implies(self.member(row), truth(predicate(row))))

    def some(self, predicate: Callable[[Expr], Expr]) -> Expr:
        return self.world.some(self.sort, lambda row: z3.And(self.member(row), truth(predicate(row))))

    def none(self) -> Expr:
        return self.world.every(self.sort, lambda row: z3.Not(self.member(row)))


class SomeRelation:
    """`logic.Relation`: a predicate of two terms."""

    def __init__(self, world: World, sorts: tuple[str, ...], predicate: Callable[[Expr, Expr], Expr]) -> None:
        self.world, self.sorts, self.fn = world, sorts, predicate

    def __getitem__(self, pair: tuple[Expr, Expr]) -> Expr:
        return self.fn(*pair)

    def of(self, left: Expr) -> SomeRows:
        return SomeRows(self.world, self.sorts[1], partial(self.fn, left))

    def at(self, right: Expr) -> SomeRows:
        fn = self.fn
        return SomeRows(self.world, self.sorts[0], lambda a: fn(a, right))

    def _becomes(self, rule: Callable[[Expr, Expr, Callable[[Expr, Expr], Expr]], Expr]) -> None:
        old = self.fn
        self.fn = lambda a, b: rule(a, b, old)

    def add(self, left: Expr, right: Expr) -> None:
        self._becomes(lambda a, b, old: z3.Or(z3.And(a == left, b == right), old(a, b)))

    def add_if(self, condition: Expr, left: Expr, right: Expr) -> None:
        self._becomes(lambda a, b, old: z3.Or(z3.And(condition, a == left, b == right), old(a, b)))

    def remove(self, left: Expr, right: Expr) -> None:
        self._becomes(lambda a, b, old: z3.And(z3.Not(z3.And(a == left, b == right)), old(a, b)))

    def clear_of(self, left: Expr) -> None:
        self._becomes(lambda a, b, old: z3.And(a != left, old(a, b)))

    def clear_at(self, right: Expr) -> None:
        self._becomes(lambda a, b, old: z3.And(b != right, old(a, b)))

    def clear_of_each(self, lefts: SomeRows) -> None:
        self._becomes(lambda a, b, old: z3.And(z3.Not(lefts.member(a)), old(a, b)))

    def set_of(self, left: Expr, right: Expr) -> None:
        self._becomes(lambda a, b, old: z3.If(a == left, b == right, old(a, b)))

    def hand_of(self, source: Expr, target: Expr) -> None:
        self._becomes(lambda a, b, old: z3.If(a == target, old(source, b), z3.And(a != source, old(a, b))))

    def hand_at(self, source: Expr, target: Expr) -> None:
        self._becomes(lambda a, b, old: z3.Or(z3.And(b == target, old(a, source)), z3.And(b != source, old(a, b))))

    def copy_at(self, other: SomeRelation, right: Expr, target: Expr, but: Expr = None) -> None:
        column = other.at(right)
        everything = z3.BoolVal(but is None)
        self._becomes(lambda a, b, old: z3.Or(z3.And(b == target, column.member(a), z3.Or(everything, a != but)), old(a, b)))

    def clear(self) -> None:
        self.fn = lambda a, b: z3.BoolVal(False)


class SomeFunction:
    """`logic.Function`: a map from a term to a term."""

    def __init__(self, fn: Callable[[Expr], Expr], default: Expr) -> None:
        self.fn, self.default = fn, default

    def __getitem__(self, key: Expr) -> Expr:
        return self.fn(key)

    def __setitem__(self, key: Expr, value: Expr) -> None:
        self.set_where(lambda k: k == key, lambda k: value)

    def set_each(self, flags: SomeFunction, value: Expr) -> None:
        self.set_where(flags.fn, lambda k: value)

    def set_where(self, condition: Callable[[Expr], Expr], value: Callable[[Expr], Expr]) -> None:
        old = self.fn
        self.fn = lambda k: z3.If(condition(k), value(k), old(k))

    def clear(self) -> None:
        self.fn = lambda k: self.default


class SomeLayer(SomeFunction):
    """`logic.Layer`: the map below it until it is set."""

    def __init__(self, fn: Callable[[Expr], Expr], own: Callable[[Expr], Expr], base: SomeFunction) -> None:
        super().__init__(fn, base.default)
        self.own, self.base = own, base

    def __getitem__(self, key: Expr) -> Expr:
        return z3.If(self.own(key), self.fn(key), self.base[key])

    def set_where(self, condition: Callable[[Expr], Expr], value: Callable[[Expr], Expr]) -> None:
        super().set_where(condition, value)
        own = self.own
        self.own = lambda k: z3.Or(condition(k), own(k))

    def sink(self) -> None:
        layers = [self]
        while isinstance(layers[-1].base, SomeLayer):
            layers.append(layers[-1].base)
        for layer in reversed(layers):
            layers[-1].base.set_where(layer.own, layer.fn)
            layer.clear()

    def clear(self) -> None:
        self.own = lambda k: z3.BoolVal(False)


Relation: Any = watched(
    SomeRelation,
    "__getitem__ of at",
    "add add_if remove clear_of clear_at clear_of_each set_of hand_of hand_at copy_at clear",
)
Function: Any = watched(SomeFunction, "__getitem__", "__setitem__ set_each clear")
Layer: Any = watched(SomeLayer, "__getitem__", "__setitem__ set_each sink clear")


# ----------------------------------------------------------------------------------------------------------------- a state


@cache
def parts() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Each relation and function of `State` with its kind and its sorts, read off the annotations in its source."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for node in ast.walk(ast.parse("class _:\n" + inspect.getsource(State.__init__))):
        if isinstance(node, ast.AnnAssign) and isinstance(node.annotation, ast.Subscript):
            assert isinstance(node.target, ast.Attribute)
            kind, _, sorts = ast.unparse(node.annotation).partition("[")
            found[node.target.attr] = (kind, tuple(sorts.rstrip("]").split(", ")))
    return found


class SomeState(State):
    """Any state at all: every relation and function is a symbol. `guards` collects what an action asks, by name."""

    def __init__(self, world: World, tag: str = "") -> None:
        real = State()
        made: dict[str, Any] = {}
        for name, (kind, sorts) in parts().items():
            if kind == "Relation":
                made[name] = Relation(world, sorts, world.function(name + tag, *sorts, "bool"))
                continue
            fn = world.function(name + tag, *sorts)
            part = getattr(real, name)
            if kind == "Function":
                made[name] = Function(fn, world.contents.get(part.default, part.default))
            else:
                base = next(made[other] for other in made if getattr(real, other) is part.base)
                made[name] = Layer(fn, world.function(f"{name}{tag}.set", sorts[0], "bool"), base)
        vars(self).update(made, guards={}, zero=world.contents[ZERO], null=world.null, unordered=world.unordered)
        self.issued, self.completed = (world.constant(name + tag, "int") for name in ("issued", "completed"))

    def require(self, guard: str, term: Expr) -> None:
        if any(getattr(part, "_written", False) for part in vars(self).values()):
            raise OrderError(f"guard {guard!r} comes after a write")
        vars(self)["guards"][guard] = truth(term)


def empty(world: World) -> SomeState:
    """The state that every run starts from."""
    state = SomeState(world)
    for name in parts():
        getattr(state, name).clear()
    state.issued = state.completed = z3.IntVal(0)
    state.settle()
    return state


@cache
def sorts_of(action: Action) -> tuple[str, ...]:
    """The sort of each parameter: its annotation."""
    return tuple(inspect.get_annotations(action.apply)[name] for name in action.parameters)


def arguments(world: World, action: Action) -> list[Expr]:
    """A symbol for each parameter of an action, of the sort that its annotation names."""
    return [world.constant(f"{name}?", sort) for name, sort in zip(action.parameters, sorts_of(action), strict=True)]


def taken(world: World, action: Action, state: SomeState, values: list[Expr]) -> dict[str, Expr]:
    """Runs the action on the state. Returns its guards, as terms over the state before."""
    with installed(world):
        action.apply(state, *values)
    state.settle()
    guards: dict[str, Expr] = vars(state)["guards"]
    vars(state)["guards"] = {}
    return guards
