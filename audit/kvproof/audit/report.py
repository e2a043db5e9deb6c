"""What a run says: violations with their story, program and steps, and three closing lines. Text, JSON, JUnit or SARIF."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec

from kvproof.audit.checks import CHECKS
from kvproof.audit.fuzz import Summary, Violation
from kvproof.audit.program import (
    Abort,
    Add,
    AnyOperation,
    Complete,
    EndLoad,
    EndSave,
    Free,
    Hit,
    Key,
    Program,
    ResetCache,
    Schedule,
    Take,
)
from kvproof.audit.session import Identity
from kvproof.audit.shrink import options
from kvproof.audit.standalone import operations_text
from kvproof.audit.steptable import LEGEND, around, render
from kvproof.spec.faults import Severity
from kvproof.spec.records import Config

HELD, VIOLATED, USAGE, UNKNOWN, UNAVAILABLE, VACUOUS = range(6)  # exit codes

SARIF_LEVELS = {Severity.CORRUPTION: "error", Severity.LEAK: "error", Severity.CRASH: "error", Severity.STALL: "error"}


Paths = dict[Identity, Path]  # of case files


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"
    JUNIT = "junit"
    SARIF = "sarif"


class Closing(msgspec.Struct, frozen=True):
    """The end of every run: verdict and time; what reproduces it; which knob to turn next. code: the exit code."""

    code: int
    verdict: str
    reproduce: str
    knob: str

    @property
    def lines(self) -> list[str]:
        return [self.verdict, f"again: {self.reproduce}", f"next:  {self.knob}"]


# ------------------------------------------------------------------------------------------------------------ in words


WORDS = {
    Schedule: "a step",
    Complete: "the oldest step completes",
    ResetCache: "the cache is reset",
    EndSave: "a save ends",
    Take: "a block is taken",
    Key: "registered",
    Hit: "hit",
    Free: "given back",
}


def setting(config: Config) -> str:
    """A configuration in one line."""
    geometry = config.geometry
    equal = [(size, len(list(same))) for size, same in groupby(group.block_size for group in geometry.groups)]
    sizes = "/".join(str(size) if times == 1 else f"{size} x{times}" for size, times in equal)
    retention = "dense" if geometry.retention is None else str(geometry.retention)
    options = [config.policy.value] + ["fences"] * config.fences + ["junctions"] * config.junctions
    return (
        f"blocks {sizes} unit {geometry.unit}, retention {retention}, pool {geometry.num_blocks}, budget "
        f"{config.max_batched_tokens}, {config.max_seqs} requests of {config.max_model_len} tokens at most, "
        f"depth {config.depth}, {', '.join(options)}"
    )


def said(operation: AnyOperation) -> str:
    """An operation in a few words."""
    match operation:
        case Add():
            shape = "+".join(f"[{start}..{stop})" for start, stop in operation.prompt)
            first = f"all that {operation.after} said, then " if operation.after else ""
            more = "".join(f", {name} {getattr(operation, name)}" for name in options(operation))
            tokens = f"{len(operation.tokens)} tokens {shape}"
            return f"{operation.id} arrives with {first}{tokens}, answers {operation.max_tokens}{more}"
        case Abort(id):
            return f"{id} is aborted"
        case EndLoad(id, ok):
            return f"the load for {id} {'ends' if ok else 'fails'}"
        case Key(block) | Hit(block) | Free(block):
            return f"block {block} is {WORDS[type(operation)]}"
        case _:
            return WORDS[type(operation)]


def story(program: Program, step: int, what: str) -> str:
    """What happened, in one sentence."""
    repeats = [(word, len(list(same))) for word, same in groupby(map(said, program.operations))]
    words = [word if times == 1 else f"{word} x{times}" for word, times in repeats]
    end = f"then the engine runs until it is idle. At step {step}: " if step else ""
    return f"{'; '.join(words)}; {end}{what}"


def held_by(violation: Violation) -> str:
    names = ", ".join(origin.value for origin in violation.origins)
    return f"{violation.case.geometry}, {violation.case.origin}" + (f" (seen on: {names})" if names else "")


def explained(name: str) -> list[str]:
    """A check: sentence, severity, why, and how it is checked."""
    check = CHECKS[name]
    how = (
        "outside: the shadow device runs what a worker is told (kvproof.spec.device)"
        if check.side == "outside"
        else "inside: the kernel is driven by what the engine did to its pool (kvproof.spec.clauses, .events)"
    )
    return [f"{name}: {check.sentence}", f"  severity  {check.severity}", f"  why       else {check.why}", f"  checked   {how}"]


def grouped(violations: Iterable[Violation]) -> list[list[Violation]]:
    """Violations that one program shows, together: mostly they have one cause."""
    groups: dict[Program, list[Violation]] = {}
    for violation in violations:
        groups.setdefault(violation.case.program, []).append(violation)
    return list(groups.values())


def group_text(group: list[Violation], paths: Paths) -> list[str]:
    """The report of violations that one program shows."""
    lines = [line for violation in group for line in clause_text(violation)]
    case, steps, first = group[0].case, group[0].lines, group[0].finding.step
    if steps:
        lines.append(f"  setting    {setting(case.config)}")
    lines += [f"  story      {story(case.program, first, group[0].finding.what)}"]
    lines += ["  program", *indented(operations_text(case, [line.step for line in steps]), 4)]
    if steps:
        lines += ["  steps", *indented(render(around(steps, first)), 4)]
    where = paths.get(group[0].identity)
    if where:
        lines += [f"  reproduce  kvproof replay {where}", f"  or         python {where.with_suffix('.py')}"]
    return lines


def clause_text(violation: Violation) -> list[str]:
    """Which clause broke and how bad that is."""
    finding, check = violation.finding, CHECKS[violation.finding.check]
    lines = [
        f"{check.name}: {check.sentence}",
        f"  severity   {finding.severity}: {check.why}",
        f"  finding    {finding.what}",
        f"  signature  {finding.signature}",
    ]
    if violation.lines:
        lines.append(f"  geometry   {held_by(violation)}")
    if not violation.again:
        lines.append("  beware     it did not show again when the same program was run once more")
    if violation.accepted:
        lines.append(f"  accepted   {violation.accepted.reason}")
    return lines


def indented(lines: Iterable[str], by: int) -> list[str]:
    return [" " * by + line if line else "" for line in lines]


# ------------------------------------------------------------------------------------------------------------- formats


def text(summary: Summary, closing: Closing, paths: Paths) -> str:
    lines: list[str] = []
    groups = grouped(summary.new)
    for number, group in enumerate(groups, start=1):
        seen = f"seen {group[0].seen} times" if summary.plan.profile else "replayed"
        lines += [f"violation {number} of {len(groups)}, {seen}", *group_text(group, paths), ""]
    if any(violation.lines for violation in summary.new):
        lines += ["how to read the steps", *indented(LEGEND, 2), ""]
    for violation in summary.violations:
        if violation.accepted:
            lines.append(f"accepted: {violation.finding.check} ({violation.finding.signature}): {violation.accepted.reason}")
    for entry in summary.gone:
        lines.append(f"gone: {entry.check} ({entry.signature}) no longer occurs: take it out of the baseline")
    lines += figures(summary) + summary.notes + closing.lines
    return "\n".join(lines)


def figures(summary: Summary) -> list[str]:
    plan = summary.plan
    if not plan.profile:  # a replay
        return []
    lines = [
        f"{plan.target} {summary.release}, profile {plan.profile}, geometry {plan.geometry or 'mixed'}, seed {plan.seed}: "
        f"{summary.programs} programs, {summary.steps} steps, {summary.steps_per_second:.0f} steps/s"
    ]
    if summary.actions:
        lines.append("actions: " + "  ".join(f"{name} {count}" for name, count in sorted(summary.actions.items())))
    if summary.refused:
        lines.append(f"{summary.refused} programs that this target cannot serve, the last one because: {summary.reason}")
    return lines


def as_dict(summary: Summary, closing: Closing, paths: Paths) -> dict[str, Any]:
    return {
        "closing": msgspec.to_builtins(closing),
        "target": summary.plan.target,
        "release": summary.release,
        "profile": summary.plan.profile,
        "geometry": summary.plan.geometry,
        "seed": summary.plan.seed,
        "programs": summary.programs,
        "steps": summary.steps,
        "steps_per_second": round(summary.steps_per_second, 1),
        "seconds": round(summary.seconds, 1),
        "refused": summary.refused,
        "actions": dict(sorted(summary.actions.items())),
        "silent": summary.silent,
        "violations": [
            {
                "check": v.finding.check,
                "signature": v.finding.signature,
                "severity": v.finding.severity,
                "what": v.finding.what,
                "geometry": v.case.geometry,
                "origins": [origin.value for origin in v.origins],
                "operations": len(v.case.operations),
                "accepted": v.accepted.reason if v.accepted else None,
                "file": str(paths[v.identity]) if v.identity in paths else None,
                "case": msgspec.to_builtins(v.case),
            }
            for v in summary.violations
        ],
        "gone": [{"check": entry.check, "signature": entry.signature} for entry in summary.gone],
    }


def as_json(summary: Summary, closing: Closing, paths: Paths) -> str:
    return json.dumps(as_dict(summary, closing, paths), indent=1)


def as_junit(summary: Summary, closing: Closing, paths: Paths) -> str:
    """One test case for each check; a failure for each of its new findings."""
    new = Counter(violation.finding.check for violation in summary.new)
    suite = ElementTree.Element(
        "testsuite",
        name=f"kvproof {summary.plan.target} {summary.release}",
        tests=str(len(CHECKS)),
        failures=str(len(new)),
        time=f"{summary.seconds:.1f}",
    )
    for name in CHECKS:
        case = ElementTree.SubElement(suite, "testcase", classname="kvproof", name=name)
        found = [violation for violation in summary.new if violation.finding.check == name]
        if found:
            failure = ElementTree.SubElement(case, "failure", message="; ".join(v.finding.what for v in found))
            failure.text = "\n".join(line for v in found for line in group_text([v], paths))
    ElementTree.SubElement(suite, "system-out").text = "\n".join([*figures(summary), *closing.lines])
    return ElementTree.tostring(suite, encoding="unicode")


def as_sarif(summary: Summary, closing: Closing, paths: Paths) -> str:
    """SARIF 2.1.0: checks are rules, findings are results at the case file, accepted ones suppressed."""
    rules = [
        {
            "id": check.name,
            "shortDescription": {"text": check.sentence},
            "fullDescription": {"text": check.why},
            "defaultConfiguration": {"level": SARIF_LEVELS.get(check.severity, "warning")},
        }
        for check in CHECKS.values()
    ]
    results = []
    for v in summary.violations:
        result: dict[str, Any] = {
            "ruleId": v.finding.check,
            "level": SARIF_LEVELS.get(v.finding.severity, "warning"),
            "message": {"text": f"{v.finding.what} ({v.finding.signature})"},
            "partialFingerprints": {"signature/v1": f"{v.finding.check}: {v.finding.signature}"},
        }
        if v.identity in paths:
            uri = paths[v.identity].as_posix()
            result["locations"] = [{"physicalLocation": {"artifactLocation": {"uri": uri}}}]
        if v.accepted:
            result["suppressions"] = [{"kind": "external", "justification": v.accepted.reason}]
        results.append(result)
    run = {
        "tool": {"driver": {"name": "kvproof", "rules": rules}},
        "results": results,
        "invocations": [{"executionSuccessful": closing.code in (HELD, VIOLATED), "exitCode": closing.code}],
    }
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=1)


FORMATS = {Format.TEXT: text, Format.JSON: as_json, Format.JUNIT: as_junit, Format.SARIF: as_sarif}
