"""What is to be proved, as SMT-LIB texts: each says by itself what it assumes and what would refute it.

A text is what a solver process is given, what the cache is keyed by, and what `kvproof prove --print-smtlib` prints.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import z3

from kvproof.proofs.face import Expr, SomeState, World, arguments, empty, installed, taken, truth
from kvproof.spec.actions import ACTIONS, Action
from kvproof.spec.clauses import CLAUSES, Clause
from kvproof.spec.state import State

SMTLIB_NAME = str.maketrans("|\\", "//")


@dataclass(frozen=True, slots=True)
class Obligation:
    """A theorem, or with `expect` "sat" a witness: something that must be possible, so that nothing is proved vacuously.

    family: "induction", "start", "witness", "policy", ... name: what tells it from the others of its family, e.g. action
    and clause. sentence: what it promises, in plain words. smt: the text; a theorem's is to be unsatisfiable.
    """

    family: str
    name: tuple[str, ...]
    sentence: str
    smt: str = field(repr=False)
    expect: str = "unsat"

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.expect}\n{self.smt}".encode()).hexdigest()


def theorem(family: str, name: tuple[str, ...], sentence: str, premises: Mapping[str, Expr], goal: Expr) -> Obligation:
    """That the premises imply the goal."""
    return Obligation(family, name, sentence, refutation(gathered([*premises.values(), goal]), asserted(premises), goal))


def witness(family: str, name: tuple[str, ...], sentence: str, premises: Mapping[str, Expr]) -> Obligation:
    """That the premises can hold together."""
    text = "\n".join([gathered(premises.values()), asserted(premises), "(check-sat)"])
    return Obligation(family, name, sentence, text, "sat")


def refutation(declarations: str, premises: str, goal: Expr) -> str:
    return "\n".join([declarations, premises, asserted({"not so": z3.Not(truth(goal))}), "(check-sat)"])


def asserted(terms: Mapping[str, Expr]) -> str:
    return "\n".join(
        f"(assert (! {truth(term).sexpr()} :named |{name.translate(SMTLIB_NAME)}|))" for name, term in terms.items()
    )


def gathered(terms: Iterable[Expr]) -> str:
    solver = z3.Solver()
    solver.add(*map(truth, terms))
    text: str = solver.to_smt2()
    return text[: text.index("(assert")]


# ---------------------------------------------------------------------------------------------------------------- the kernel


def clauses_of(world: World, state: State, clauses: Mapping[str, Clause]) -> dict[str, Expr]:
    """Each clause, of every row."""
    with installed(world):
        return {
            name: truth(entry.holds(state))
            if entry.row == "clock"
            else world.every(entry.row.capitalize(), lambda row, entry=entry: entry.holds(state, row))
            for name, entry in clauses.items()
        }


def declared(world: World) -> str:
    sorts = [f"(declare-sort {sort} 0)" for sort in world.sorts if sort not in ("int", "bool")]
    return "\n".join([*sorts, *(declaration.sexpr() for declaration in world.declarations.values())])


class Tables(NamedTuple):
    """Rules: actions and clauses by name."""

    actions: Mapping[str, Action] = ACTIONS
    clauses: Mapping[str, Clause] = CLAUSES


RULES = Tables()


class Kernel:
    """Rules on terms. axioms; start: each clause of the first state; known: the axioms, and each clause of any state."""

    def __init__(self, rules: Tables) -> None:
        self.world, (self.actions, self.clauses) = World(), rules
        self.start = clauses_of(self.world, empty(self.world), self.clauses)
        self.axioms = self.world.axioms()
        self.known = self.axioms | clauses_of(self.world, SomeState(self.world), self.clauses)
        self._bound, self._declarations = self.world.bound, dict(self.world.declarations)

    @cached_property
    def assumed(self) -> str:
        """`known`, asserted."""
        return asserted(self.known)

    def anywhere(self) -> SomeState:
        """Any state; nothing but its parts is declared then."""
        self.world.bound, self.world.declarations = self._bound, dict(self._declarations)
        return SomeState(self.world)

    def after(self, name: str) -> tuple[dict[str, Expr], dict[str, Expr]]:
        """The guards of an action in any state, and each clause of the state after it."""
        state, action = self.anywhere(), self.actions[name]
        guards = taken(self.world, action, state, arguments(self.world, action))
        return guards, clauses_of(self.world, state, self.clauses)


def induction() -> Iterator[Obligation]:
    """Every clause holds at the start, and every action preserves every clause: for any number of blocks, holders, owners,
    keys, contents and steps."""
    kernel = Kernel(RULES)
    axioms, declarations = asserted(kernel.axioms), declared(kernel.world)
    for clause, goal in kernel.start.items():
        yield Obligation("start", (clause,), f"At the start, {clause}.", refutation(declarations, axioms, goal))
    for action in ACTIONS:
        guards, goals = kernel.after(action)
        premises, declarations = "\n".join([kernel.assumed, asserted(guards)]), declared(kernel.world)
        for clause, goal in goals.items():
            text = refutation(declarations, premises, goal)
            yield Obligation("induction", (action, clause), f"After `{action}`, {clause}.", text)
