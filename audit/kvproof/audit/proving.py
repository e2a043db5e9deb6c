"""The verb `kvproof prove`: the rules of spec/ as theorems, and what is around them.

Without options: that every clause is always true, that nothing is proved vacuously, what the policies promise, and how soon
fences end. Each of the other families has an option of its own.
"""

from __future__ import annotations

import difflib
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from kvproof.audit.case import BadInput
from kvproof.audit.report import HELD, UNKNOWN, USAGE, VACUOUS, VIOLATED, Closing
from kvproof.audit.target import TargetUnavailable
from kvproof.spec.actions import ACTIONS, DEVICE_ORDER
from kvproof.spec.clauses import CLAUSES

if TYPE_CHECKING:
    from kvproof.proofs.obligations import Obligation
    from kvproof.proofs.runner import Verdict

Say = Callable[[float, str], None]  # share of the work that is done, and what is worked on
Result = tuple[list[str], Closing]


def need_solver() -> None:
    """Raises TargetUnavailable where the solver is not installed."""
    if find_spec("z3") is None:
        raise TargetUnavailable("z3 is not installed: pip install 'kvproof[prove]', or use the environment of `make prove`")


def seconds(text: str) -> float:
    """A duration: `1ms`, `2s`, `0.5`. Raises BadInput."""
    number, unit = (text[:-2], 1e-3) if text.endswith("ms") else (text.removesuffix("s"), 1.0)
    try:
        value = float(number) * unit
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise BadInput(f"{text!r} is no duration: write 500ms, 2s or 0.5 (seconds)")
    return value


def chosen(obligations: Iterable[Obligation], clause: str | None, action: str | None) -> list[Obligation]:
    """Those whose name has the words of `clause`, or that are about a clause of that check; and about an action. Raises
    BadInput where there are none."""
    if action is not None and action not in ACTIONS:
        raise BadInput(f"no action is named {action!r}: {', '.join(ACTIONS)}")
    checked = {name for name, entry in CLAUSES.items() if entry.check == clause}
    found = [o for o in obligations if clause is None or clause in " ".join(o.name) or checked.intersection(o.name)]
    if not found:
        known = ", ".join(sorted({entry.check for entry in CLAUSES.values()}))
        raise BadInput(f"no theorem has {clause!r} in its name: use words of a clause, of docs/times.md, or a check: {known}")
    return [obligation for obligation in found if action is None or action in obligation.name]


def summary(verdicts: Sequence[Verdict]) -> list[str]:
    """One line per family, then whatever does not hold."""
    lines = []
    asked = Counter(verdict.obligation.family for verdict in verdicts)
    held = Counter(verdict.obligation.family for verdict in verdicts if verdict.holds)
    for family, count in asked.items():
        took = sum(verdict.answer.seconds for verdict in verdicts if verdict.obligation.family == family)
        lines.append(f"{family:<10} {held[family]} of {count} hold, {took:.2f} s of solving")
    for verdict in verdicts:
        if not verdict.holds:
            what = "unknown" if verdict.unknown else "refuted" if verdict.obligation.expect == "unsat" else "impossible"
            lines.append(f"  {what}: {verdict.obligation.sentence}")
    return lines


def details(verdicts: Sequence[Verdict]) -> list[str]:
    """Each obligation: its sentence, what the solver said, and the assertions that it used."""
    lines = []
    for verdict in verdicts:
        lines.append(f"{verdict.obligation.sentence}  [{verdict.answer.said}, {verdict.answer.seconds * 1000:.1f} ms]")
        lines += [f"    by: {name}" for name in verdict.answer.core if name != "not so"]
    return lines


def theorems(clause: str | None, action: str | None, timeout: float, *, cached: bool, say: Say | None) -> Result:
    """Proves what is chosen, everything by default."""
    start = time.perf_counter()
    verdicts = proved(clause, action, timeout, cached=cached, say=say)
    lines = details(verdicts) if clause or action else []
    unreached = [] if clause or action else unreachable()
    again = " ".join(
        ["kvproof prove", *([shlex.quote(clause or "-")] if clause or action else []), *([action] if action else [])]
    )
    end = ending(verdicts, time.perf_counter() - start, again)
    if unreached and end.code == HELD:
        end = Closing(
            VACUOUS, f"vacuous: never reached: {', '.join(unreached)}", again, "kvproof prove --necessity: search anew"
        )
    return [*lines, *summary(verdicts)], end


def proved(clause: str | None, action: str | None, timeout: float, *, cached: bool, say: Say | None) -> list[Verdict]:
    """The verdicts of what is chosen; with cores where that is not everything."""
    from kvproof.proofs.promises import obligations
    from kvproof.proofs.runner import Cache, cache_folder, prove

    cache = Cache(cache_folder() if cached else None)
    asked = chosen(cache.made(obligations), clause, action)
    told = say and (lambda done, name: say(done / len(asked), name))
    return list(prove(asked, cache=cache, seconds=timeout, core=bool(clause or action), say=told))


def unreachable() -> list[str]:
    """Actions that cannot happen and clauses whose premise cannot hold, as far as the kept runs show."""
    from kvproof.proofs.runs import load
    from kvproof.proofs.witness import lacking

    return lacking(load()[0])


def guard_runs(guard: str) -> list[str]:
    """What goes wrong without a guard: for each action that asks it a shortest run, or what it is for."""
    if find_spec("z3") is None:
        return ["pip install 'kvproof[prove]' to see what goes wrong without it"]
    from kvproof.audit.runtable import render, why
    from kvproof.proofs.runs import load

    lines = ["no clause misses it: it keeps the device doing what the rules say"] if guard in DEVICE_ORDER else []
    for name, run in load()[0]["guards"].items():
        if run.dropped and run.dropped[1] == guard:
            lines += ["", name, why(run), *(f"  {line}" for line in render(run))]
    return lines


def smtlib(clause: str | None, action: str | None) -> str:
    """The texts of what is chosen, as one SMT-LIB script: a `reset` before each."""
    from kvproof.proofs.promises import obligations

    asked = chosen(obligations(), clause, action)
    return "\n".join(f"; {o.sentence} Expected: {o.expect}.\n(reset)\n{o.smt}" for o in asked)


def necessity(timeout: float, say: Say | None) -> Result:
    """Finds the runs that show what each guard is for, and the witnesses, where they are wanting."""
    from kvproof.proofs.necessity import guards, refresh
    from kvproof.proofs.runs import load

    start = time.perf_counter()
    lines: list[str] = []

    def told(line: str) -> None:
        lines.append(line)
        if say:
            say(0.0, line)

    lacking = refresh(seconds=timeout, say=told)
    took = time.perf_counter() - start
    count = f"{len(load()[0]['guards'])} runs for {len(guards())} guards, the others keep the device's order ({took:.1f} s)"
    again, knob = "kvproof prove --necessity", "kvproof explain GUARD: its run"
    if lacking:
        knob = "--solver-timeout 1h: search longer"
        return [*lines, *(f"  no run: {name}" for name in lacking)], Closing(UNKNOWN, f"unknown: {count}", again, knob)
    return lines, Closing(HELD, f"held: {count}", again, knob)


def states(*, long: bool, say: Say | None) -> Result:
    """Visits every state of the tiny scopes, and compares what it counts with what is pinned."""
    from kvproof.proofs.explore import LONG, SCOPES, counted, pinned

    start, lines, wrong = time.perf_counter(), [], []
    for name in SCOPES | LONG if long else SCOPES:
        for unordered in (False, True):
            label, counts = counted(name, unordered=unordered)
            if say:
                say(0.0, label)
            reach = "" if counts["all"] else f" in {len(counts['states']) - 1} actions"
            agrees = counts == pinned().get(label)
            lines.append(f"{label:<30} {sum(counts['states'])} states{reach}{'' if agrees else ', not as pinned'}")
            wrong += [] if agrees else [label]
    again, took = f"kvproof prove --states{' --long' * long}", f"({time.perf_counter() - start:.0f} s)"
    knob = (
        "python -m kvproof.proofs.explore: pin the counts of changed rules"
        if wrong
        else "--long: the larger scopes, in minutes"
    )
    verdict = f"violated: {', '.join(wrong)} differ {took}" if wrong else f"held: no clause breaks, all counts as pinned {took}"
    return lines, Closing(VIOLATED if wrong else HELD, verdict, again, knob)


def mutants() -> Result:
    """Kills every mutant of the rules."""
    from kvproof.audit.pages import matrix
    from kvproof.proofs.mutants import MUTANTS, failures, refresh

    start = time.perf_counter()
    lacking = refresh()
    alive = [name for name, mutant in MUTANTS.items() if bool(failures(mutant)) is bool(mutant.survives)]
    explained = sum(bool(mutant.survives) for mutant in MUTANTS.values())
    count = f"{len(MUTANTS)} mutants, {explained} explained ({time.perf_counter() - start:.1f} s)"
    again, knob = "kvproof prove --mutants", f"kvproof prove --mutant {next(iter(MUTANTS))}: how one dies"
    lines = [*matrix(), *(f"no run: {name}" for name in lacking)]
    if alive:
        return [*lines, *alive], Closing(VIOLATED, f"violated: {len(alive)} not as they should, of {count}", again, knob)
    if lacking:
        return lines, Closing(UNKNOWN, f"unknown: {len(lacking)} without a run, of {count}", again, knob)
    return lines, Closing(HELD, f"held: {count}", again, knob)


def mutant(name: str) -> Result:
    """How the clauses kill a wrong rule. Raises BadInput where none is named so."""
    from kvproof.audit.pages import how_killed
    from kvproof.proofs.mutants import MUTANTS, failures

    if name not in MUTANTS:
        near = difflib.get_close_matches(name, MUTANTS, n=1) or ["--mutants lists them"]
        raise BadInput(f"no mutant is named {name!r}: {near[0]}")
    start, it = time.perf_counter(), MUTANTS[name]
    lines = [f"{name}: {it.sentence}", f"{it.module}.{it.function}", f"- {it.old}", f"+ {it.new}", "", *how_killed(it)]
    again, knob = f"kvproof prove --mutant {name}", "kvproof prove --mutants: which clause kills which"
    took = f"({time.perf_counter() - start:.1f} s)"
    if failed := failures(it):
        return lines, Closing(VIOLATED, f"violated: {len(failed)} obligations fail {took}", again, knob)
    return lines, Closing(HELD, f"held: no clause misses it {took}", again, knob)


def pages(folder: Path, timeout: float, *, cached: bool, say: Say | None) -> Result:
    """Proves everything and writes the generated pages."""
    from kvproof.audit.pages import PAGES, times

    start = time.perf_counter()
    verdicts = proved(None, None, timeout, cached=cached, say=say)
    again = f"kvproof prove --pages {shlex.quote(str(folder))}"
    end = ending(verdicts, time.perf_counter() - start, again)
    if end.code == HELD:
        folder.mkdir(parents=True, exist_ok=True)
        for name, page in PAGES.items():
            (folder / name).write_text(page())
        (folder / "times.md").write_text(times(verdicts))
    return [*summary(verdicts), *(str(folder / name) for name in (*PAGES, "times.md"))], end


def contracts(timeout: float) -> Result:
    """Searches a counterexample to each contract on the Python functions. What is not found is not proved."""
    if find_spec("crosshair") is None:
        raise TargetUnavailable("crosshair-tool is not installed: pip install 'kvproof[prove]'")
    from kvproof.proofs.contracts import NOT_CONFIRMED, crosshair

    start = time.perf_counter()
    verdicts = list(crosshair(timeout))
    lines = [f"{name}: {said}" for name, said in verdicts]
    wrong = [name for name, said in verdicts if said not in ("confirmed", NOT_CONFIRMED)]
    confirmed = sum(said == "confirmed" for _, said in verdicts)
    count = f"{len(verdicts)} contracts, {confirmed} confirmed ({time.perf_counter() - start:.0f} s)"
    again, knob = f"kvproof prove --contracts --solver-timeout {timeout:g}", "--solver-timeout 300s: search longer"
    if wrong:
        return lines, Closing(VIOLATED, f"violated: {', '.join(wrong)}: {count}", again, knob)
    return lines, Closing(HELD, f"held: nothing against {count}", again, knob)


def ending(verdicts: Sequence[Verdict], took: float, again: str) -> Closing:
    """The end of a run. An unknown is worse than a refutation: there may be more behind it."""
    unknown = sum(verdict.unknown for verdict in verdicts)
    wrong = [verdict for verdict in verdicts if not verdict.holds and not verdict.unknown]
    cached = sum(verdict.cached for verdict in verdicts)
    rate = len(verdicts) / max(took, 1e-9)
    count = f"{len(verdicts)} obligations in {took:.1f} s ({rate:.0f} per second, {cached} from the cache)"
    if not verdicts:
        return Closing(USAGE, "usage: nothing to prove is named so", again, "kvproof prove: everything")
    if unknown:
        return Closing(UNKNOWN, f"unknown: {unknown} of {count}", again, "--solver-timeout 60s: give the solver longer")
    if any(verdict.obligation.expect == "unsat" for verdict in wrong):
        return Closing(VIOLATED, f"violated: {len(wrong)} of {count}", again, "kvproof prove CLAUSE ACTION: one in detail")
    if wrong:
        return Closing(VACUOUS, f"vacuous: {len(wrong)} of {count}", again, "something that has to be possible is not")
    return Closing(HELD, f"held: {count}", again, "kvproof prove CLAUSE ACTION: which guards a proof uses")
