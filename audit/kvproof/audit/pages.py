"""The generated pages of docs/: what is promised, what each guard is for, which mistakes the clauses kill.

They are the same for the same rules, whatever the machine, but for times.md. `make pages` writes them, and the tests fail
where one is not what the rules say.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from string import ascii_lowercase

from kvproof.audit.runtable import render, why
from kvproof.proofs.contracts import CONTRACTS
from kvproof.proofs.explore import pinned
from kvproof.proofs.face import World
from kvproof.proofs.mutants import MUTANTS, NEVER, Mutant, failures, mutated, run_of
from kvproof.proofs.necessity import guards
from kvproof.proofs.promises import obligations
from kvproof.proofs.runner import Verdict
from kvproof.proofs.runs import load
from kvproof.spec.actions import ACTIONS, DEVICE_ORDER
from kvproof.spec.clauses import CLAUSES

# ---------------------------------------------------------------------------------------------------------------- promises


def promises() -> str:
    """docs/promises.md."""
    return "\n".join([PROMISES, *always(), *families(), *around(), NOT_PROMISED])


def always() -> Iterator[str]:
    yield f"""## Always true, for any number of blocks, holders, owners, keys and steps

Checked: z3, by induction. Each holds at the start, and each of the {len(ACTIONS)} actions keeps it where its guards hold:
{len(CLAUSES) * (len(ACTIONS) + 1)} obligations without a bound on anything. Not vacuous: a run that the tests take on the real
state shows for each action that it can happen, and for each clause that its premise can hold.

Assumes: that nothing happens to a block but by these actions with their guards; that steps run on the device in the
order in which they are issued; and of contents and keys, as `tests/proofs/test_axioms.py` shows for `spec/lineage.py`:
"""
    yield from (f"- {axiom};" for axiom in World().axioms())
    yield ""
    yield from (f"- **{capital(name)}.**" for name in CLAUSES)
    yield f"""
{len(DEVICE_ORDER)} guards keep what the rules say equal to what the device does, whatever the order of calls:
{", ".join(f"*{guard}*" for guard in DEVICE_ORDER)}.
`tests/machines/test_device_order.py` shows on the shadow device what happens without each.
"""


def families() -> Iterator[str]:
    """Theorems and witnesses that are not of the kernel, by family."""
    rest = sorted((o for o in obligations() if o.family in FAMILIES), key=lambda o: [*FAMILIES].index(o.family))
    for family, members in groupby(rest, lambda o: o.family):
        yield FAMILIES[family]
        yield from dict.fromkeys(f"- {'Possible: ' * (o.expect == 'sat')}{o.sentence}" for o in members)
        yield ""


def around() -> Iterator[str]:
    """What is shown by other means than a solver's unbounded proof."""
    runs, killed = load()[0]["guards"], sum(bool(failures(mutant)) for mutant in MUTANTS.values())
    states = {label: sum(counts["states"]) for label, counts in pinned().items()}
    yield f"""## Shown by runs and by counting

- Each of the {len(guards())} guards is needed: {len(runs)} have a shortest run that breaks a clause without them
  ([necessity.md](necessity.md)), the others keep the order of the device. Checked: z3 over a tiny scope; every run is taken on
  the real state.
- Of {len(MUTANTS)} plausible mistakes in the rules the clauses kill {killed}, and every clause kills one; the others are
  explained ([mutants.md](mutants.md)). Checked: z3, and a run taken on the real state.
- No clause breaks in any state that legal actions reach in {len(states)} tiny scopes, {sum(states.values()):,} states but for
  names. Checked: by visiting each (`kvproof prove --states`).
- The symbolic and the concrete face of the logic agree on every state of two tiny scopes and on random runs: guards, next
  states, clauses. Checked: `tests/proofs/test_agreement.py`.

## Searched, not proved

CrossHair runs these functions on symbolic values (`kvproof prove --contracts`). Where it does not say *confirmed*, it has found
nothing in the time it had.
"""
    yield from (f"- {(contract.__doc__ or '').splitlines()[0]}" for contract in CONTRACTS)
    yield ""


def times(verdicts: Iterable[Verdict]) -> str:
    """docs/times.md: how long each theorem took, on the machine that made the page."""
    took: dict[tuple[str, str], list[float]] = defaultdict(list)
    for verdict in verdicts:
        family, name = verdict.obligation.family, verdict.obligation.name
        kernel = family in ("start", "induction")
        took["induction" if kernel else family, name[-1] if kernel else " ".join(name)].append(verdict.answer.seconds)
    lines = ["# How long the proofs took", "", "On one machine; see [promises.md](promises.md).", ""]
    lines += ["| family | theorem | obligations | seconds, all | slowest |", "|---|---|---|---|---|"]
    for (family, about), seconds in took.items():
        lines.append(f"| {family} | {about} | {len(seconds)} | {sum(seconds):.3f} | {max(seconds):.3f} |")
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------------------------------------------------ necessity


def necessity() -> str:
    """docs/necessity.md."""
    lines, runs = [NECESSITY], load()[0]["guards"]
    for name, action in ACTIONS.items():
        lines += ["", f"## {name}"] if action.guards else []
        for guard in action.guards:
            run = runs.get(f"{name} / {guard}")
            lines += ["", f"### {name}: {guard}", ""]
            if run is not None:
                lines += [why(run), "", "```", *render(run), "```"]
            elif guard in DEVICE_ORDER:
                lines += ["No clause misses it. It keeps the device doing what the rules say, whatever the order of calls."]
            else:
                lines += ["No run is known."]
    return "\n".join(lines) + "\n"


# -------------------------------------------------------------------------------------------------------------- mutants


def mutants() -> str:
    """docs/mutants.md."""
    text = [MISTAKES, "```", *matrix(), "```"]
    for name, it in MUTANTS.items():
        text += ["", f"## {name}" + f" ({it.museum})" * bool(it.museum), "", f"{capital(it.sentence)}.", ""]
        text += ["```", f"{it.module}.{it.function}", f"- {it.old}", f"+ {it.new}", "", *how_killed(it), "```"]
    return "\n".join(text) + "\n"


def matrix() -> list[str]:
    """Mutants and the clauses that kill them, as a table."""
    letters, width = dict(zip([*CLAUSES, NEVER], ascii_lowercase, strict=False)), max(map(len, MUTANTS))
    killers = {name: {clause for _, clause in failures(mutant)} for name, mutant in MUTANTS.items()}
    lines = [" ".join([" " * width, *letters.values()])]
    for name, broken in killers.items():
        lines.append(" ".join([name.ljust(width), *("x" if clause in broken else "." for clause in letters)]))
    killed = Counter(clause for broken in killers.values() for clause in broken)
    return [*lines, "", *(f"{letter}  kills {killed[clause]:2}: {clause}" for clause, letter in letters.items())]


def how_killed(mutant: Mutant) -> list[str]:
    """The obligations that fail, and a shortest run that ends in a broken clause; or why nothing kills it."""
    failed, run = [f"{action}: {clause}" for action, clause in failures(mutant)], run_of(mutant)
    if not failed:
        return [f"survives: {mutant.survives}"]
    return [*failed, "", *render(run, mutated(mutant))] if run else failed


def capital(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


# ------------------------------------------------------------------------------------------------------- what never changes

PROMISES = """\
# What kvproof promises

Generated by `make pages`; `make test` fails where it is not what the rules say. How long each proof took: [times.md](times.md).
"""

FAMILIES = {
    "policy": """\
## For all sizes: the policies

Checked: z3, on every path of the Python functions of `spec/chunks.py`, `demand.py` and `lookup.py` themselves
(`proofs/kvproof/proofs/paths.py`), for any positive sizes where the unit divides the block. Each premise is possible, too.
""",
    "liveness": """\
## What ends, and when

Checked: z3, over any state where the clauses hold. Assumes: that issued steps complete.
""",
}

NECESSITY = """\
# Why each guard is there

Generated by `make pages` from the runs that `kvproof prove --necessity` finds; the tests take each on the concrete rules. A run
ends with the action that violates the guard, marked `!`. It is a shortest one found in a tiny scope: two blocks beside the
null block, five holders, two owners, attention rows and states of the texts `ab` and `abcd`, at most three steps. Runs where
an outside writer leaves known bytes behind are looked at last, so there may be a shorter one of that kind.

A column names a block and what changed about it: who holds it, with what the holder needs of it and reads in the staged
step; its keys, `*` for those of the staged step; its content before > in the middle of > after the staged step; and the
step of its last use. `done/issued` is the clock."""

MISTAKES = """\
# Mistakes that the clauses kill

Generated by `make pages`. Each mutant is one plausible mistake of one line in the actions or clauses of `spec/`, some of them
known bugs. A mutant dies where z3 refutes an obligation of its rules, or where an action can never happen any more. Under each
stand the obligations that fail, and a shortest run of a tiny scope that breaks a clause, replayed on the real state. A mistake
in a clause that only asks too little breaks nothing by itself: its run fails one guard (!), unseen by the clauses, and a later
step within the guards breaks one.
"""

NOT_PROMISED = """\
## Not promised

- **That an engine keeps the rules.** The theorems are about the rules. `kvproof fuzz` and the monitor hold engines against
  them, which is a search: it finds violations, and finding none proves nothing.
- **That the bytes are right.** The forward pass, the copy kernels and the collectives are taken as doing what they are told.
- **That a hash names one text.** Lineages are compared by identity. An engine's hashes may collide.
- **That a request is ever served.** What is bounded is how long a fence lasts. Fairness and progress of a scheduler are
  watched by checks (`kvproof explain progress`), not proved.
- **That the two faces of the logic are one.** That they agree is tested, not proved.
- **That z3 and Python are right.** `kvproof prove --print-smtlib` prints every text for another solver.
"""

PAGES: dict[str, Callable[[], str]] = {"promises.md": promises, "necessity.md": necessity, "mutants.md": mutants}
