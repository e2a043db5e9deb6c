"""Plausible mistakes in the rules, one line each, and which clauses kill them.

A mutant is killed where an obligation of its tables has a refutation, or where an action can no longer happen at all. The
list is written like a patch: a name, the known bug that it is (a row of the museum, or an F of docs/findings.md), the
mistake in words; then the function and what is replaced in it. `survives` says why nothing need kill it. `unless` is for a
clause that asks too little: the guard that a run must fail, unseen by the clause, before something breaks.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType

import z3

from kvproof.proofs.face import Expr
from kvproof.proofs.obligations import Kernel, Tables
from kvproof.proofs.runner import SolverUnknown
from kvproof.proofs.runs import Run, judged, load, save, shortest
from kvproof.proofs.scope import Guard, Rules, Scope
from kvproof.spec import actions, clauses
from kvproof.spec.errors import KvproofError

START, NEVER = "the start", "can never happen"
Failure = tuple[str, str]  # an action, or START; the clause that it breaks, or NEVER

PATCHES = Path(__file__).with_suffix(".txt").read_text()

PATCH = re.compile(
    r"(?P<name>\S+)(?: \((?P<museum>.+?)\))?: (?P<sentence>.+)\n"
    r"  (?P<module>\w+)\.(?P<function>\w+): (?P<old>.+) => (?P<new>.+)\n"
    r"(?:  unless: (?P<unless>.+)\n)?(?:  survives: (?P<survives>.+)\n)?"
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake: in `function` of a module of the rules, `new` stands where `old` should. museum: the known bug that it is.
    unless, survives: see above."""

    name: str
    sentence: str
    module: str
    function: str
    old: str
    new: str
    museum: str | None = None
    unless: str | None = None
    survives: str | None = None

    @property
    def unseen(self) -> Guard | None:
        """The guard of `unless`, with its action."""
        action, _, guard = (self.unless or "").partition(" / ")
        return (action, guard) if guard else None


MUTANTS: dict[str, Mutant] = {match["name"]: Mutant(**match.groupdict()) for match in PATCH.finditer(PATCHES)}


@cache
def mutated(mutant: Mutant) -> Tables:
    """The actions and clauses with the mistake in them; the rules themselves stay as they are.

    Raises KvproofError where the text to be replaced is not there exactly once.
    """
    original = {"actions": actions, "clauses": clauses}[mutant.module]
    body = inspect.getsource(vars(original)[mutant.function]) if mutant.function in vars(original) else ""
    if (times := body.count(mutant.old)) != 1:
        where = f"{mutant.module}.{mutant.function}"
        raise KvproofError(f"mutant {mutant.name}: {mutant.old!r} is {times} times in {where}, not once: write it anew")
    text = inspect.getsource(original).replace(body, body.replace(mutant.old, mutant.new))
    file, module = f"<mutant {mutant.name}>", ModuleType(f"kvproof.spec.{mutant.module}")
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # `Action.guards` reads the source
    exec(compile(text, file, "exec"), vars(module))
    tables = vars(actions) | vars(clauses) | vars(module)
    return Tables(tables["ACTIONS"], tables["CLAUSES"])


def touched(mutant: Mutant) -> list[str]:
    """The actions whose obligations the mistake can change: those that use its function, or all where it is in a clause."""
    if mutant.module == "clauses":
        return [*actions.ACTIONS]
    functions = [node for node in ast.parse(inspect.getsource(actions)).body if isinstance(node, ast.FunctionDef)]
    calls = {node.name: {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} for node in functions}
    users, more = set[str](), {mutant.function}
    while more:
        users |= more
        more = {name for name, called in calls.items() if called & users} - users
    return [name for name in actions.ACTIONS if name in users]


@cache
def failures(mutant: Mutant) -> tuple[Failure, ...]:
    """The obligations that do not hold any more. Raises SolverUnknown where the solver does not know."""
    kernel = Kernel(mutated(mutant))
    failed = [(START, clause) for clause in _refuted(kernel.axioms, kernel.start)]
    for name in touched(mutant):
        guards, goals = kernel.after(name)
        failed += [(name, clause) for clause in _refuted(kernel.known | guards, goals)]
    return tuple(failed)


def _refuted(premises: Mapping[str, Expr], goals: Mapping[str, Expr]) -> Iterator[str]:
    """The goals that the premises do not imply, or NEVER where the premises contradict each other."""
    solver = z3.Solver()
    solver.set("timeout", 20_000)
    solver.add(*premises.values())
    if solver.check() == z3.unsat:
        yield NEVER
        return
    for name, goal in goals.items():
        answer = solver.check(z3.Not(goal))
        if answer == z3.unknown:
            raise SolverUnknown(f"the solver does not know: {solver.reason_unknown()}")
        if answer == z3.sat:
            yield name


# -------------------------------------------------------------------------------------------------------- counterexamples


def search(mutant: Mutant, seconds: float = 600) -> Run | None:
    """A shortest run of the tiny scope that breaks a clause: within the mutated guards but for the one of `unless`, which
    the steps before the last may fail. No load fails in it, since that would put any bytes anywhere."""
    rules, promises = mutated(mutant)
    formulas = Rules(Scope(), Tables({name: rule for name, rule in rules.items() if name != "spoil"}, promises))
    whole = z3.Not(z3.substitute(formulas.broken, *zip(formulas.after, formulas.before, strict=True)))
    goal = z3.And(whole, formulas.broken, formulas.legal())
    return shortest(formulas, goal, 12, seconds, mutant.unseen)[0]


def stands(mutant: Mutant, run: Run) -> bool:
    """Whether the last step of the run, and no other, breaks a clause of the mutant on the concrete face."""
    moments, wrong = judged(replace(run, dropped=mutant.unseen), mutated(mutant))
    return not wrong and bool(moments[-1].broken) and not moments[-1].refused


def run_of(mutant: Mutant, seconds: float = 20.0) -> Run | None:
    """The run that was found before, or else what so many seconds find; none where nothing breaks."""
    return load()[0]["mutants"].get(mutant.name) or (search(mutant, seconds) if breaks(mutant) else None)


def breaks(mutant: Mutant) -> set[str]:
    """The clauses that kill it."""
    return {clause for _, clause in failures(mutant)} - {NEVER}


def refresh() -> list[str]:
    """Searches the runs that are missing or do not stand any more, and stores all. Returns the mutants that lack one."""
    runs, fresh = load()
    kept = {name: runs["mutants"].get(name) for name, mutant in MUTANTS.items() if breaks(mutant)}
    found = {name: run if run and stands(MUTANTS[name], run) else search(MUTANTS[name]) for name, run in kept.items()}
    save(runs | {"mutants": {name: run for name, run in found.items() if run}}, fresh=fresh)
    return [name for name, run in found.items() if run is None]
