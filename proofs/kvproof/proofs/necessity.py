"""No guard is superfluous: for each there is a run that breaks a clause where this guard alone is not asked.

Since every action keeps every clause where its guards hold, what breaks a clause is an action that violates the guard. Runs
are looked for where it is the only one; a guard that has to be violated more than once would be left without, and told. A
guard that no clause misses has no run in any scope; `unmissed` proves that, and `DEVICE_ORDER` says what it is for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import z3

from kvproof.proofs import witness
from kvproof.proofs.obligations import RULES, Kernel, Tables
from kvproof.proofs.runs import STORE, Run, Search, judged, load, save
from kvproof.proofs.scope import Guard, Rules, Scope
from kvproof.spec.actions import DEVICE_ORDER

Say = Callable[[str], None]
TIDY = 7  # greatest depth at which runs are looked for that leave no known content where any may be left


def guards(rules: Tables = RULES) -> list[Guard]:
    return [(name, guard) for name, action in rules.actions.items() for guard in action.guards]


def unmissed(rules: Tables = RULES, seconds: float = 10.0) -> dict[Guard, bool]:
    """The guards without which their action keeps every clause all the same, proved without bounds; and of each whether the
    other guards and the clauses imply it. One that z3 does not know about is not among them."""
    kernel, found = Kernel(rules), {}
    for name in rules.actions:
        asked, kept = kernel.after(name)
        for guard in asked:
            solver = z3.Solver()
            solver.set("timeout", round(1000 * seconds))
            solver.add(*kernel.known.values(), *(term for other, term in asked.items() if other != guard))
            if solver.check(z3.Not(z3.And([*kept.values()]))) == z3.unsat:
                found[name, guard] = solver.check(z3.Not(asked[guard])) == z3.unsat
    return found


def search(
    wanted: list[Guard], tables: Tables = RULES, *, depth: int = 10, seconds: float = 600.0, say: Say = lambda line: None
) -> Iterator[tuple[Guard, Run | int]]:
    """A shortest run for each guard; or, where there is none or time is up, how many actions a run has at least to have, less
    one. Only the last action violates the guard. First where outside writers leave nothing known, then with any content.
    Raises RuntimeError where a clause breaks with all guards in place."""
    rules, end = Rules(Scope(), tables), time.monotonic() + seconds
    left = list(wanted)
    for within, deepest in ((rules.tidy, min(depth, TIDY)), (z3.BoolVal(True), depth)):
        goals = {("", ""): z3.And(rules.broken, rules.legal())}
        for action, guard in left:
            others = [holds for (name, other), holds in rules.holds.items() if name == action and other != guard]
            goals[action, guard] = z3.And(rules.broken, rules.does[action], z3.Not(rules.holds[action, guard]), *others)
        looking = Search(rules, goals, within=within)
        for found, run in looking.runs(deepest, end - time.monotonic()):
            if found not in left:
                raise RuntimeError(f"with all guards in place a clause breaks: {run.steps}")
            say(f"{' / '.join(found)}: {len(run.steps)} actions")
            left.remove(found)
            yield found, replace(run, dropped=found)
            if not left:
                return
        say(f"{len(left)} guards without a run of up to {looking.depth} actions {looking.gave_up}")
    yield from ((dropped, looking.depth) for dropped in left)


def faults(run: Run, rules: Tables = RULES) -> list[str]:
    """What is wrong with a run that is to show that its dropped guard is necessary; taken on the concrete state."""
    moments, found = judged(run, rules)
    if not any(last.broken for last in moments[-1:]):
        found.append("no clause breaks")
    if not any(last.refused for last in moments[-1:]):
        found.append("the last action does not violate the guard")
    return found


def refresh(path: Path = STORE, *, depth: int = 10, seconds: float = 600.0, say: Say = lambda line: None) -> list[str]:
    """Finds the runs and witnesses that the file lacks, all where the rules have changed, and writes it. A run that still
    shows what it is to show stays until a shorter one is found. Returns what has none."""
    runs, fresh = load(path)
    kept = {name: run for name, run in runs["guards"].items() if not faults(run)}
    missed = [guard for guard in guards() if guard[1] not in DEVICE_ORDER]
    wanted = [guard for guard in missed if not fresh or " / ".join(guard) not in kept]
    say(f"{len(wanted)} guards to search a run for")
    try:
        for guard, found in search(wanted, depth=depth, seconds=seconds, say=say) if wanted else ():
            name = " / ".join(guard)
            if isinstance(found, Run):
                kept[name] = found
            elif name in kept:
                kept[name] = replace(kept[name], bound=min(found, len(kept[name].steps) - 1))
    finally:
        witness.refresh(runs, fresh)
        save(runs | {"guards": kept}, path)
    lacking = [" / ".join(guard) for guard in missed if " / ".join(guard) not in kept]
    return lacking + [f"no witness: {name}" for name in witness.lacking(runs)]
