"""Nothing is proved of nothing: every action can happen and change something, every clause's premise can hold.

A witness is a run that keeps all guards. The runs are kept beside this file and taken again on the concrete state, which
takes milliseconds; `search` finds them anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import z3

from kvproof.proofs.obligations import RULES, Tables
from kvproof.proofs.runs import Run, Runs, Search, judged
from kvproof.proofs.scope import Rules, Scope
from kvproof.spec.actions import ACTIONS
from kvproof.spec.clauses import CLAUSES
from kvproof.spec.logic import Term, both, either, negate, none, some
from kvproof.spec.state import Block, Holder, State

Premise = Callable[..., Term]


def _reads(state: State, block: Block) -> Term:
    return some(state.holds.at(block), lambda h: negate(none(state.reads.of(h))))


def _held(state: State, holder: Holder) -> Term:
    return negate(none(state.holds.of(holder)))


# What has to hold of a row for the clause to say anything about it.
PREMISES: dict[str, Premise] = {
    "a keyed block answers all its keys once the staged step is done": lambda s, b: negate(none(s.keyed.at(b))),
    "what a holder relies on, its block holds then": lambda s, b: some(s.holds.at(b), lambda h: negate(none(s.needs.of(h)))),
    "a state read finds its state before the forward pass": _reads,
    "a key from an earlier step is answered before the staged step, and the step does not clear it": lambda s, b: some(
        s.keyed.at(b), lambda key: negate(s.staged_key[key, b])
    ),
    "content changes only where something is staged": lambda s, b: negate(
        both(s.mid[b] == s.before[b], s.after[b] == s.mid[b])
    ),
    "a retired key does not come back": lambda s, b: both(negate(none(s.keyed.at(b))), negate(none(s.retired.at(b)))),
    "a block that is used beyond the horizon is held by a holder that reaches that use": lambda s, b: s.last_use[b] > s.horizon,
    "both endpoints of a copy are held by a fence until the copy ran": lambda s, b: either(s.copied[b], s.source[b]),
    "a staged use is a use, and no use is later": lambda s, b: either(s.copied[b], s.source[b], s.loaded[b], s.written[b]),
    "a staged state read is a use": _reads,
    "the null block is inert": lambda s, b: b == s.null,
    "a holder holds one block": _held,
    "a holder is a fence or belongs to somebody alive": lambda s, h: both(_held(s, h), negate(s.fenced[h])),
    "a fence ends with a step that exists": lambda s, h: both(_held(s, h), s.fenced[h]),
    "an outside write runs on a block that no step in flight or staged touches and nobody reads": lambda s, h: negate(
        none(s.loading.of(h))
    ),
    "steps complete after they were issued": lambda s: s.completed > 0,
}


def denied(rules: Tables, premises: Mapping[str, Premise]) -> Tables:
    """The rules, but per clause one that says the opposite of its premise: it breaks where the premise holds of some row."""
    denials = {name: lambda *row, premise=premises[name]: negate(premise(*row)) for name in rules.clauses}
    return Tables(rules.actions, {name: replace(rules.clauses[name], holds=denial) for name, denial in denials.items()})


def search(
    tables: Tables = RULES, premises: Mapping[str, Premise] = PREMISES, *, depth: int = 8, seconds: float = 300.0
) -> Iterator[tuple[tuple[str, str], Run | int]]:
    """By family ("actions" or "clauses") and name a shortest run; or where there is none, how many actions it has at least to
    have, less one."""
    rules = Rules(Scope(), denied(tables, premises))
    goals = {("actions", name): z3.And(does, rules.changes, rules.legal()) for name, does in rules.does.items()}
    goals |= {("clauses", name): z3.And(z3.Not(denial), rules.legal()) for name, denial in rules.kept.items()}
    looking = Search(rules, goals, within=rules.tidy)
    yield from looking.runs(depth, seconds)
    yield from ((name, looking.depth) for name in looking.open)


def faults(family: str, name: str, run: Run, premises: Mapping[str, Premise] = PREMISES) -> list[str]:
    """What is wrong with a run that is to show that an action can happen, or a premise hold; taken on the concrete state."""
    moments, found = judged(run, RULES)
    denials, _ = judged(run, denied(RULES, premises))
    found += [f"the last action breaks a clause: {last.broken[0][0]}" for last in moments[-1:] if last.broken]
    if family == "actions" and [step for step, _ in run.steps][-1:] != [name]:
        found.append(f"the last action is not {name}")
    if family == "clauses" and not any(broken == name for denial in denials[-1:] for broken, _ in denial.broken):
        found.append("the premise does not hold after it")
    return found


def refresh(runs: Runs, fresh: bool) -> None:
    """Finds all witnesses among the runs anew where one is wanting or the rules have changed."""
    if not fresh or lacking(runs):
        runs |= {"actions": {}, "clauses": {}}
        for (family, name), run in search():
            if isinstance(run, Run):
                runs[family][name] = run


def lacking(runs: Runs) -> list[str]:
    """Actions and clauses without a witness that shows what it is to show."""
    names = [("actions", name) for name in ACTIONS] + [("clauses", name) for name in CLAUSES]
    return [name for family, name in names if name not in runs[family] or faults(family, name, runs[family][name])]
