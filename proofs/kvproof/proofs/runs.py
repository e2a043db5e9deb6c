"""Shortest runs: what happens, action by action from the empty state, until something is reached that was asked for.

The search goes depth by depth over a tiny scope, so a run that it finds is a shortest one of that scope; that there is none
says nothing about larger scopes. A run holds names of concrete objects: `replay` takes its actions on the real state.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import z3

import kvproof.spec.actions as actions_module
import kvproof.spec.clauses as clauses_module
import kvproof.spec.state as state_module
from kvproof.proofs.face import Expr, sorts_of
from kvproof.proofs.obligations import RULES, Tables
from kvproof.proofs.scope import Guard, Rules, named
from kvproof.spec.actions import ACTIONS, Action
from kvproof.spec.state import State


@dataclass(frozen=True, slots=True)
class Run:
    """Actions with the names of their arguments. dropped: the guard, of an action, that is not asked.

    unordered: as in `State`. bound: the search ruled out all runs of so many actions, so it is a shortest one of the scope
    where that is one less than its own length.
    """

    steps: tuple[tuple[str, tuple[str, ...]], ...]
    unordered: bool
    dropped: Guard | None = None
    bound: int = 0


class Search:
    """Looks for runs to several goals at once; a goal is a term of `rules` that is to hold of the last step.

    No step but the last violates a guard, the dropped one left aside; all steps are `within` a term. open: goals without a
    run so far. depth: none of them has a run of so many actions. gave_up: why the search ended before its bound, if it did.
    """

    def __init__(self, rules: Rules, goals: Mapping[Any, Expr], dropped: Guard | None = None, within: Expr = True) -> None:
        self.rules, self.dropped, self.depth, self.gave_up = rules, dropped, 0, ""
        self.open = {name: z3.Bool(f"goal {i}") for i, name in enumerate(goals)}
        definitions = [mark == goal for mark, goal in zip(self.open.values(), goals.values(), strict=True)]
        self.legal = z3.Bool("legal")
        self.step = z3.simplify(z3.And(rules.step, within, self.legal == rules.legal(dropped), *definitions))
        symbols = {symbol.get_id(): symbol for symbols in rules.arguments.values() for symbol in symbols}
        self.own = [rules.action, self.legal, *symbols.values(), *rules.holds.values(), *self.open.values()]
        self.symbols: list[dict[int, tuple[Expr, Expr]]] = []
        self.facts: list[Expr] = []

    def at(self, step: int, symbol: Expr) -> Expr:
        """A symbol of `rules`, or one of the search, as of the step of that number."""
        return self.symbols[step][symbol.get_id()][1]

    def grow(self) -> None:
        """One more step."""
        rules, now, then = self.rules, len(self.symbols), len(self.symbols) + 1
        of = [*((cell, now) for cell in rules.before), *((symbol, now) for symbol in self.own)]
        pairs = {symbol.get_id(): (symbol, z3.Const(f"{symbol.decl().name()}@{at}", symbol.sort())) for symbol, at in of}
        for old, new in zip(rules.before, rules.after, strict=True):
            pairs[new.get_id()] = (new, z3.Const(f"{old.decl().name()}@{then}", old.sort()))
        self.symbols.append(pairs)
        self.facts += [z3.substitute(term, *pairs.values()) for term in (self.step, *([] if now else [rules.start]))]
        self.solver = z3.SolverFor("QF_FD")  # a fresh one: what it learned at lesser depths only slows it down
        self.solver.add(*self.facts)

    def runs(self, depth: int, seconds: float, patience: float = 60.0) -> Iterator[tuple[Any, Run]]:
        """Goals and a run to each, up to a depth and a time. They are shortest runs until the solver does not know within
        the patience; from there on it looks at greater depths all the same, and `depth` stays."""
        end, exact = time.monotonic() + seconds, True
        for last in range(len(self.symbols), depth):
            if not self.open:
                return
            self.grow()
            marks = {name: self.at(last, mark) for name, mark in self.open.items()}
            answer = z3.sat
            while self.open and answer == z3.sat:
                some = z3.Bool(f"some of {len(self.open)}@{last}")
                self.solver.add(z3.Implies(some, z3.Or([marks[name] for name in self.open])))
                self.solver.set("timeout", max(1, int(1000 * min(patience, end - time.monotonic()))))
                answer = self.solver.check(some)
                if answer == z3.sat:
                    model = self.solver.model()
                    for name in [name for name in self.open if z3.is_true(model[marks[name]])]:
                        del self.open[name]
                        yield name, self.run(model, last + 1)
            self.facts.append(self.at(last, self.legal))
            if answer == z3.unknown:
                exact = False
                self.gave_up = f"the solver did not know: {self.solver.reason_unknown()}"
                if time.monotonic() > end:
                    return
            elif exact:
                self.facts += [z3.Not(marks[name]) for name in self.open]
                self.depth += 1

    def run(self, model: Any, length: int) -> Run:
        rules, steps = self.rules, []
        for i in range(length):
            name = [*rules.actions][model.eval(self.at(i, rules.action)).as_long()]
            values = [model.eval(self.at(i, symbol), model_completion=True) for symbol in rules.arguments[name]]
            steps.append((name, tuple(map(rules.world.name, sorts_of(rules.actions[name]), values))))
        return Run(tuple(steps), z3.is_true(model.eval(rules.world.unordered)), self.dropped, self.depth)


def shortest(rules: Rules, goal: Expr, depth: int, seconds: float, dropped: Guard | None = None) -> tuple[Run | None, Search]:
    """A shortest run whose last step meets the goal, and the search, which tells how far it looked where there is none. No
    step of it violates a guard but the dropped one. For runs that break a clause the goal is `rules.broken`."""
    search = Search(rules, {"": z3.And(goal, rules.legal(dropped))}, dropped)
    return next((run for _, run in search.runs(depth, seconds)), None), search


# --------------------------------------------------------------------------------------------------- runs that are kept

STORE = Path(__file__).with_name("runs.json")
FAMILIES = ("guards", "actions", "clauses", "mutants")
Runs = dict[str, dict[str, Run]]  # by family and name


def digest() -> str:
    """Of the rules as they stand, comments and docstrings left aside, and of the names in the scope: what was found under
    others is to be found anew."""
    trees = [ast.parse(inspect.getsource(module)) for module in (actions_module, clauses_module, state_module)]
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
    scope = [[*members] for members in named().values()]
    return hashlib.sha256("".join([str(scope), *map(ast.dump, trees)]).encode()).hexdigest()


def load(path: Path = STORE) -> tuple[Runs, bool]:
    """The runs of a file that the actions can read, and whether they were found under the rules as they stand."""
    text = json.loads(path.read_text()) if path.exists() else {}
    found: Runs = {family: {} for family in FAMILIES}
    for family, name, entry in ((f, n, e) for f in found for n, e in text.get(f, {}).items()):
        steps = []
        for action, _, told in (step.partition(": ") for step in entry["steps"]):
            parts = [part.split(" ", 1) for part in told.split(", ") if part]
            if action not in ACTIONS or tuple(part[0] for part in parts) != ACTIONS[action].parameters:
                break  # of other rules
            steps.append((action, tuple(part[1] for part in parts)))
        else:
            dropped = (steps[-1][0], name.partition(" / ")[2]) if family == "guards" else None
            found[family][name] = Run(tuple(steps), entry["unordered"], dropped, entry["bound"])
    return found, text.get("rules") == digest()


def save(runs: Runs, path: Path = STORE, *, fresh: bool = True) -> None:
    """fresh: all but the mutants were found under the rules as they stand."""
    text: dict[str, Any] = {"rules": digest() if fresh else ""}
    for family, entries in runs.items():
        text[family] = {}
        for name, run in sorted(entries.items()):
            steps = [f"{action}: {said(ACTIONS[action], values)}".removesuffix(": ") for action, values in run.steps]
            text[family][name] = {"unordered": run.unordered, "bound": run.bound, "steps": steps}
    path.write_text(json.dumps(text, indent=1) + "\n")


def said(action: Action, values: tuple[str, ...]) -> str:
    return ", ".join(f"{name} {value}" for name, value in zip(action.parameters, values, strict=True))


# -------------------------------------------------------------------------------------------------- on the concrete face


@dataclass(frozen=True, slots=True)
class Moment:
    """After one action of a run: the guards that it failed, and the clauses that are broken with their row."""

    refused: tuple[str, ...]
    broken: tuple[tuple[str, str], ...]


@cache
def known() -> dict[str, dict[str, Any]]:
    """The objects that names in runs stand for: those of any scope."""
    return named(9, 9, "rstuvw", ("ab", "cd", "abcd", "abef"))


def named_in(run: Run, sort: str, rules: Tables) -> list[str]:
    names = [pair for name, values in run.steps for pair in zip(sorts_of(rules.actions[name]), values, strict=True)]
    return sorted({name for its, name in names if its == sort})


def replay(run: Run, rules: Tables = RULES, see: Callable[[State], object] = lambda state: None) -> list[Moment]:
    """Takes the actions on the concrete state. One that fails a guard happens all the same: the moment after tells. `see` is
    called with the state after each."""
    objects, state, moments = known(), State(unordered=run.unordered, strict=True), []
    rows = {sort: {name: objects[sort][name] for name in named_in(run, sort, rules)} for sort in ("Block", "Holder")}
    rows["Block"]["0"] = state.null
    for name, arguments in run.steps:
        state.refusals = []
        sorts = sorts_of(rules.actions[name])
        values = [objects[s][a] if s in objects else int(a) for s, a in zip(sorts, arguments, strict=True)]
        rules.actions[name].apply(state, *values)
        state.settle()
        broken = [
            (clause.name, f"{clause.row} {row}".rstrip())
            for clause in rules.clauses.values()
            for row, *its in ([("",)] if clause.row == "clock" else rows[clause.row.capitalize()].items())
            if clause.holds(state, *its) is not True
        ]
        moments.append(Moment(tuple(dict.fromkeys(state.refusals)), tuple(broken)))
        see(state)
    return moments


def judged(run: Run, rules: Tables) -> tuple[list[Moment], list[str]]:
    """The moments of a run and what is wrong with it, whatever it is to show: that it cannot be taken, that an action fails a
    guard which is not the dropped one, that a clause breaks before the last action."""
    try:
        moments = replay(run, rules)
    except (KeyError, ValueError, TypeError) as error:
        return [], [f"it cannot be taken: {error!r}"]
    found = []
    for i, ((name, _), moment) in enumerate(zip(run.steps, moments, strict=True), 1):
        if any((name, guard) != run.dropped for guard in moment.refused):
            found.append(f"action {i} is refused: {', '.join(moment.refused)}")
        if moment.broken and i < len(moments):
            found.append(f"action {i} breaks a clause before the last: {moment.broken[0][0]}")
    return moments, found
