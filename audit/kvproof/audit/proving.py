"""The verb `kvproof prove`: the rules of spec/ as theorems, and what is around them.

Without options: that every clause is always true, that nothing is proved vacuously, what the policies promise, and how soon
fences end. Each of the other families has an option of its own.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from kvproof.audit.case import BadInput
from kvproof.audit.report import HELD, UNKNOWN, USAGE, VACUOUS, VIOLATED, Closing
from kvproof.audit.target import TargetUnavailable
from kvproof.spec.actions import ACTIONS
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
    """Those about a clause (a part of its sentence, or its check) and an action. Raises BadInput where there are none."""
    if action is not None and action not in ACTIONS:
        raise BadInput(f"no action is named {action!r}: {', '.join(ACTIONS)}")
    names = [name for name, entry in CLAUSES.items() if clause is not None and (clause in name or clause == entry.check)]
    if clause is not None and not names:
        known = ", ".join(sorted({entry.check for entry in CLAUSES.values()}))
        raise BadInput(f"no clause has {clause!r} in its sentence: use words of one, or a check: {known}")
    return [
        obligation
        for obligation in obligations
        if (clause is None or any(name in obligation.name for name in names)) and (action is None or action in obligation.name)
    ]


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
    from kvproof.proofs.promises import obligations
    from kvproof.proofs.runner import Cache, cache_folder, prove

    start = time.perf_counter()
    asked = chosen(obligations(), clause, action)
    cache = Cache(cache_folder() if cached else None)
    told = say and (lambda done, name: say(done / len(asked), name))
    verdicts = list(prove(asked, cache=cache, seconds=timeout, say=told))
    lines = details(verdicts) if clause or action else []
    again = " ".join(
        ["kvproof prove", *([shlex.quote(clause or "-")] if clause or action else []), *([action] if action else [])]
    )
    return [*lines, *summary(verdicts)], ending(verdicts, time.perf_counter() - start, again)


def smtlib(clause: str | None, action: str | None) -> str:
    """The texts of what is chosen, as one SMT-LIB script: a `reset` before each."""
    from kvproof.proofs.promises import obligations

    asked = chosen(obligations(), clause, action)
    return "\n".join(f"; {o.sentence} Expected: {o.expect}.\n(reset)\n{o.smt}" for o in asked)


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
