"""The command `kvproof`.

Exit codes: 0 held, 1 violated, 2 usage or bad input, 3 a solver did not know, 4 target unavailable, 5 vacuous. Each run ends
with three lines: the verdict and its time; what to type to see it again; the next useful knob.
"""

from __future__ import annotations

import difflib
import inspect
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from kvproof.audit import proving
from kvproof.audit.baseline import Baseline, accept, gone, load_baseline
from kvproof.audit.case import BadInput, Case, load, save
from kvproof.audit.checks import CHECKS, GUARDS
from kvproof.audit.doctor import examine
from kvproof.audit.engines import PRESETS, TARGETS, Harness, make_harness
from kvproof.audit.fuzz import Plan, Say, Summary, Violation, fuzz, replay
from kvproof.audit.probe import ProbeResult, probe
from kvproof.audit.report import (
    FORMATS,
    HELD,
    UNAVAILABLE,
    VACUOUS,
    VIOLATED,
    Closing,
    Format,
    explained,
    group_text,
    grouped,
    said,
    setting,
)
from kvproof.audit.session import Identity
from kvproof.audit.standalone import standalone
from kvproof.audit.target import TargetUnavailable
from kvproof.audit.workload import ALL, PROFILES, SHAPES
from kvproof.spec.actions import ACTIONS
from kvproof.spec.errors import KvproofError

PROBE_OFFERS = 10_000  # at a time, until every guard has refused, for at most half of the time of the search
LONG = 60.0  # seconds after which every action should have happened and every guard refused

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)

TargetOption = Annotated[str, typer.Option(help=f"engine under test: {', '.join(TARGETS)}")]
FormatOption = Annotated[Format, typer.Option("--format", help="how to print the result")]


def main() -> None:
    """Runs the command line. Errors that kvproof raises on purpose are one line, never a traceback."""
    try:
        app(prog_name="kvproof")
    except KvproofError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.code)


# ---------------------------------------------------------------------------------------------------------------- fuzz


@app.command("fuzz")
def fuzz_command(
    target: TargetOption = "reference",
    profile: Annotated[str, typer.Option(help=f"workload: {', '.join((ALL, *PROFILES))}")] = ALL,
    geometry: Annotated[str | None, typer.Option(help=f"one of {', '.join((*SHAPES, *PRESETS))}; default: a mix")] = None,
    seed: Annotated[int, typer.Option(help="programs are the same for the same seed")] = 0,
    seconds: Annotated[float, typer.Option("--time", help="seconds, shrinking included", min=0.1)] = 60.0,
    out: Annotated[Path, typer.Option(help="where cases go")] = Path("out"),
    baseline: Annotated[Path | None, typer.Option(help="accepted findings; only new ones fail the run")] = None,
    accept_as: Annotated[str | None, typer.Option("--accept", help="add new findings to the baseline, for this reason")] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Search for a violation with random workloads."""
    if profile != ALL and profile not in PROFILES:
        raise BadInput(f"no profile is named {profile!r}: use {', '.join((ALL, *PROFILES))}")
    if geometry is not None and geometry not in (*SHAPES, *PRESETS):
        raise BadInput(f"no geometry is named {geometry!r}: use one of {', '.join((*SHAPES, *PRESETS))}")
    if accept_as is not None and baseline is None:
        raise BadInput("--accept needs a file to write to: add --baseline FILE")
    accepted = load_baseline(baseline) if baseline and (baseline.exists() or accept_as is None) else Baseline(1)
    engine = make_harness(target, geometry)
    shape = engine.preset or SHAPES.get(geometry or "")
    plan = Plan(target, profile, geometry, (shape,) if shape else (), seed, seconds, frozenset(accepted.identities))
    with progress() as say:
        probed = probe_guards(seed, seconds / 2, say) if target == "reference" else None
        summary = fuzz(engine, plan, say)
    compare(summary, accepted, baseline, engine)
    paths = write_cases(summary, out)
    if accept_as is not None and baseline is not None:
        accept(baseline, [violation.case for violation in summary.new], accept_as)
        summary.notes.append(f"{len(summary.new)} findings accepted in {baseline}")
        compare(summary, load_baseline(baseline), None, engine)
    if probed:
        judge_probe(summary, probed)
    finish(summary, closing(summary, baseline, paths), paths, output)


@contextmanager
def progress() -> Iterator[Say | None]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda used, what: bar.update(task, completed=used, description=what)


def compare(summary: Summary, baseline: Baseline, path: Path | None, engine: Harness) -> None:
    """Marks what the baseline accepts and, where its path is given, finds entries that no longer occur."""
    entries = baseline.identities
    for violation in summary.violations:
        violation.accepted = entries.get(violation.identity)
    if path is not None:
        seen = {violation.identity for violation in summary.violations}

        def shows(case: Case) -> bool:
            preset = case.geometry if case.geometry in PRESETS else None
            if (case.target, preset) != (engine.name, engine.preset and engine.preset.name):
                return True  # for a run on that target, or on that preset, to tell
            return any(violation.identity == case.finding.identity for violation in replay(engine, case))

        summary.gone = gone(baseline, path, seen, shows)


def write_cases(summary: Summary, out: Path) -> dict[Identity, Path]:
    """A case file and a standalone program for each new violation."""
    paths: dict[Identity, Path] = {}
    for violation in summary.new:
        path = paths[violation.identity] = out / f"{violation.case.name}.json"
        save(violation.case, path)
        path.with_suffix(".py").write_text(standalone(violation.case, [line.step for line in violation.lines]))
    return paths


def probe_guards(seed: int, seconds: float, say: Say | None) -> ProbeResult:
    """Offers the kernel random actions until every guard has refused and every action happened, or the time is over."""
    start, total, rounds = time.monotonic(), ProbeResult(), 0
    while total.offers == 0 or (total.silent and not total.broken and time.monotonic() - start < seconds):
        found = probe(seed + rounds * 1_000_003, PROBE_OFFERS)
        rounds += 1
        total.offers += found.offers
        total.happened += found.happened
        total.refused += found.refused
        total.broken += found.broken
        if say:
            say(0.0, f"probe: {total.offers} actions offered, {len(total.silent)} guards and actions to go")
    return total


def judge_probe(summary: Summary, probed: ProbeResult) -> None:
    """Every guard has to refuse once, and every action to happen once, in the engine or offered to the kernel."""
    refusals = f"{len(probed.refused)} guards refused {sum(probed.refused.values())} times, each at least "
    refusals += (
        f"{min(probed.refused.values(), default=0)} times" if not probed.silent else "once but " + ", ".join(probed.silent)
    )
    summary.notes.append(f"probe: {probed.offers} actions offered, {refusals}")
    summary.notes += [f"probe: {broken}" for broken in probed.broken]
    plan = summary.plan
    if plan.seconds >= LONG and plan.profile == ALL and plan.geometry is None:
        summary.silent += probed.silent
        summary.silent += [name for name in ACTIONS if not summary.actions[name] + probed.happened[name]]


def closing(summary: Summary, baseline: Path | None, paths: dict[Identity, Path]) -> Closing:
    """Verdict, reproduction (of the worst finding, where there is one) and next knob of a search."""
    plan, new = summary.plan, summary.new
    geometry = f" --geometry {plan.geometry}" if plan.geometry else ""
    known = f" --baseline {shlex.quote(str(baseline))}" if baseline else ""
    options = f"--target {plan.target} --profile {plan.profile}{geometry} --seed {plan.seed} --time {plan.seconds:g}{known}"
    command = f"kvproof fuzz {options}"
    took = f"in {summary.steps} steps ({summary.seconds:.0f} s)"
    if new:
        verdict = f"violated: {len(new)} distinct findings, the worst is {new[0].finding.severity}, {took}"
        command = f"kvproof replay {shlex.quote(str(paths[new[0].identity]))}, or for all: {command}"
        return Closing(VIOLATED, verdict, command, "--baseline FILE --accept REASON keeps what is known from failing a run")
    if summary.steps == 0:
        verdict = f"vacuous: nothing ran ({summary.seconds:.0f} s) {summary.reason}"
        return Closing(VACUOUS, verdict, command, "--time: give it longer, or --geometry: another one")
    if summary.silent:
        verdict = f"vacuous: never happened {took}: {', '.join(summary.silent)}"
        return Closing(VACUOUS, verdict, command, "--time: give it longer, or --profile: another one")
    if any(note.startswith("probe: ") and " broke " in note for note in summary.notes):
        return Closing(VIOLATED, f"violated: the rules break a clause of their own, {took}", command, "see the probe's line")
    return Closing(HELD, f"held: nothing new {took}", command, f"--seed {plan.seed + 1} for other programs, --time for more")


def finish(summary: Summary, end: Closing, paths: dict[Identity, Path], output: Format) -> None:
    show(FORMATS[output](summary, end, paths), plain=output is not Format.TEXT)
    raise typer.Exit(end.code)


def show(text: str, *, plain: bool = False) -> None:
    """Prints text; on a terminal the lines that matter stand out."""
    if plain or not sys.stdout.isatty():
        print(text)
        return
    styles = {"violation": "bold red", "violated": "bold red", "held": "bold green", "vacuous": "bold yellow"}
    console = Console(soft_wrap=True, highlight=False)
    for line in text.splitlines():
        console.print(Text(line, styles.get(line.split(":")[0].split(" ")[0], "")))


# -------------------------------------------------------------------------------------------------------- one case


@app.command("replay")
def replay_command(
    case: Annotated[Path, typer.Argument(help="a case file that kvproof wrote")],
    target: Annotated[str | None, typer.Option(help="another engine than the case's own")] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Run a case again, on the release that is installed here."""
    found = load(case)
    name = target or found.target
    engine = make_harness(name, found.geometry)
    start = time.monotonic()
    violations = replay(engine, found)
    summary = Summary(Plan(name, profile=""), engine.release, programs=1, violations=violations)
    summary.steps = sum(1 for violation in violations[:1] for _ in violation.lines)
    summary.seconds = summary.searched = time.monotonic() - start
    command = f"kvproof replay {shlex.quote(str(case))}" + (f" --target {name}" if target else "")
    finish(summary, replay_closing(found, summary, command), {v.identity: case for v in violations[:1]}, output)


def replay_closing(case: Case, summary: Summary, command: str) -> Closing:
    took = f"on {summary.plan.target} {summary.release} ({summary.seconds:.1f} s)"
    knob = f"kvproof explain {case.finding.check}"
    if any(violation.identity == case.finding.identity for violation in summary.violations):
        return Closing(VIOLATED, f"violated: {case.finding.check} as recorded on {case.release}, {took}", command, knob)
    if summary.violations:
        return Closing(VIOLATED, f"violated: not as recorded, but otherwise, {took}", command, knob)
    return Closing(
        HELD, f"held: {case.finding.check} does not show any more {took}", command, "take the case out of its baseline"
    )


@app.command("explain")
def explain_command(
    what: Annotated[str | None, typer.Argument(help="a check, a guard, an action or a case file; nothing: list them")] = None,
) -> None:
    """Say what a check, a guard, an action or a case means."""
    if what is None:
        lines = ["checks", *(f"  {c.name}: {c.sentence}" for c in CHECKS.values())]
        lines += ["actions", *(f"  {name}" for name in ACTIONS), "guards", *(f"  {guard}" for guard in GUARDS)]
    elif what in CHECKS:
        lines = explained(what) + guards_of(what)
    elif what in ACTIONS:
        lines = explained_action(what)
    elif what in GUARDS:
        names = [name for name, action in ACTIONS.items() if what in action.guards]
        lines = [f"guard {what!r} of {', '.join(names)}", "a refusal is reported under", *explained(GUARDS[what])]
        lines += proving.guard_runs(what)
    elif what.endswith(".json") or Path(what).exists():
        lines = explained_case(Path(what))
    else:
        near = difflib.get_close_matches(what, [*CHECKS, *ACTIONS, *GUARDS], n=1)
        hint = f"did you mean {near[0]!r}?" if near else "`kvproof explain` lists them"
        raise BadInput(f"no check, guard, action or case file is named {what!r}: {hint}")
    show("\n".join(lines))


def guards_of(check: str) -> list[str]:
    guards = [guard for guard, reported in GUARDS.items() if reported == check]
    return ["  guards    " + "; ".join(guards)] if guards else []


def explained_action(name: str) -> list[str]:
    action = ACTIONS[name]
    lines = [f"action {name}({', '.join(action.parameters)})", inspect.getdoc(action.apply) or "", "who may"]
    return lines + [f"  {guard}  [{GUARDS.get(guard, 'no check')}]" for guard in action.guards]


def explained_case(path: Path) -> list[str]:
    """The whole program of a case, and its steps where its target can run here."""
    case = load(path)
    lines = [
        *explained(case.finding.check),
        f"found on {case.target} {case.release}: {case.finding.what}",
        setting(case.config),
    ]
    lines += [f"  {said(operation)}" for operation in case.operations]
    try:
        violations: list[Violation] = replay(make_harness(case.target, case.geometry), case)
    except TargetUnavailable as error:
        lines.append(f"no step table: {error}")
    else:
        lines += [line for group in grouped(violations) for line in group_text(group, {})]
    return [*lines, "the whole program, to paste:", standalone(case)]


@app.command("prove")
def prove_command(
    clause: Annotated[
        str | None, typer.Argument(help="words of a clause or of another theorem's name, or a check; - for all")
    ] = None,
    action: Annotated[str | None, typer.Argument(help="an action")] = None,
    timeout: Annotated[
        str | None,
        typer.Option("--solver-timeout", help="for each obligation 20s, for the search of runs 600s, for each contract 10s"),
    ] = None,
    print_smtlib: Annotated[bool, typer.Option("--print-smtlib", help="print the texts and solve nothing")] = False,
    cached: Annotated[bool, typer.Option("--cache/--no-cache", help="use what the solver said to the same text before")] = True,
    necessity: Annotated[bool, typer.Option("--necessity", help="search a run for each guard that needs it")] = False,
    mutants: Annotated[bool, typer.Option("--mutants", help="kill every mutant of the rules")] = False,
    mutant: Annotated[str | None, typer.Option(help="show how the clauses kill this wrong rule")] = None,
    contracts: Annotated[bool, typer.Option("--contracts", help="search counterexamples with CrossHair")] = False,
    states: Annotated[bool, typer.Option("--states", help="visit every state of tiny scopes")] = False,
    long: Annotated[bool, typer.Option("--long", help="with --states: of the larger scopes too, in minutes")] = False,
    pages: Annotated[Path | None, typer.Option(help="prove everything and write the generated pages to this folder")] = None,
) -> None:
    """Prove the rules: every clause is always true, nothing is vacuous, and the policies keep their promises."""
    proving.need_solver()
    clause = None if clause == "-" else clause
    options = {"--print-smtlib": print_smtlib, "--mutant": mutant is not None, "--mutants": mutants, "--contracts": contracts}
    options |= {"--states": states, "--necessity": necessity, "--pages": pages is not None}
    given = [option for option, is_given in options.items() if is_given]
    if len(given) > 1:
        raise BadInput(f"{' and '.join(given)} are different runs: give one of them")
    if given and not print_smtlib and (clause or action):
        raise BadInput(f"{given[0]} does not choose among theorems: leave out {clause or action!r}")
    if long and not states:
        raise BadInput("--long visits more states: add --states")
    if print_smtlib:
        print(proving.smtlib(clause, action))
        return
    with progress() as say:
        if mutant is not None:
            lines, end = proving.mutant(mutant)
        elif mutants:
            lines, end = proving.mutants()
        elif contracts:
            lines, end = proving.contracts(proving.seconds(timeout or "10s"))
        elif states:
            lines, end = proving.states(long=long, say=say)
        elif necessity:
            lines, end = proving.necessity(proving.seconds(timeout or "600s"), say)
        elif pages is not None:
            lines, end = proving.pages(pages, proving.seconds(timeout or "20s"), cached=cached, say=say)
        else:
            lines, end = proving.theorems(clause, action, proving.seconds(timeout or "20s"), cached=cached, say=say)
    show("\n".join([*lines, *end.lines]))
    raise typer.Exit(end.code)


@app.command("doctor")
def doctor_command() -> None:
    """Say what is installed and what can be driven here."""
    start = time.monotonic()
    lines = examine()
    available = any(line.endswith(": available") for line in lines)
    verdict = "held: a target is available" if available else "unavailable: no target can be driven here"
    verdict += f" ({time.monotonic() - start:.1f} s)"
    end = Closing(HELD if available else UNAVAILABLE, verdict, "kvproof doctor", "kvproof fuzz --target reference")
    show("\n".join([*lines, *end.lines]))
    raise typer.Exit(end.code)


if __name__ == "__main__":
    main()
