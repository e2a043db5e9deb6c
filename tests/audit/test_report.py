"""Reports name clause, severity, story, program and steps, in every format, and pasteable programs are programs."""

import ast
import json
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from tests.audit.test_case import case_with, some_case
from tests.audit.toy import FLAT, Toy

from kvproof.audit.baseline import Entry
from kvproof.audit.case import Case
from kvproof.audit.checks import CHECKS
from kvproof.audit.engines import Harness
from kvproof.audit.fuzz import Plan, Summary, fuzz
from kvproof.audit.program import Abort, Add, Complete, Free, Hit, Key, Program, ResetCache, Schedule, Take
from kvproof.audit.report import FORMATS, VIOLATED, Closing, Format, explained, group_text, grouped, story
from kvproof.audit.session import Line
from kvproof.audit.standalone import PRELUDES, operations_text, standalone
from kvproof.audit.steptable import around, render
from kvproof.audit.targets.vllm_build import ENVIRONMENT
from kvproof.spec.records import Checkpoint, Copy, Row, Step

END = Closing(VIOLATED, "violated: much", "kvproof replay x.json", "--time 600")


@pytest.fixture(scope="module")
def summary() -> Summary:
    found = fuzz(Harness.of("toy", Toy("steals")), Plan("toy", shapes=(FLAT,), seconds=1.0))
    assert len(found.violations) >= 2
    last = found.violations[-1]
    last.accepted = Entry(*last.identity, "a toy", last.case)
    return found


def paths_of(summary: Summary) -> dict[tuple[str, str], Path]:
    return {violation.identity: Path("out", f"{violation.case.name}.json") for violation in summary.new}


def test_text_has_every_part_and_ends_with_three_lines(summary: Summary) -> None:
    text = FORMATS[Format.TEXT](summary, END, paths_of(summary))
    for part in ("severity   corruption", "signature  attention", "geometry   4,", "story      ", "  program", "  steps"):
        assert part in text
    for part in ("kvproof replay out/", "read-lineage", "how to read the steps", "accepted: read-lineage", "steps/s"):
        assert part in text
    assert text.splitlines()[-3:] == ["violated: much", "again: kvproof replay x.json", "next:  --time 600"]


def test_one_program_that_breaks_two_clauses_is_told_once(summary: Summary) -> None:
    first = summary.violations[0]
    other = msgspec.structs.replace(first.case.finding, check="needs-kept")
    twin = type(first)(msgspec.structs.replace(first.case, finding=other), first.finding, first.lines, first.origins, 1, True)
    (group,) = grouped([first, twin])
    assert sum(line == "  program" for line in group_text(group, {})) == 1


def test_json(summary: Summary) -> None:
    found = json.loads(FORMATS[Format.JSON](summary, END, paths_of(summary)))
    assert found["closing"]["code"] == VIOLATED
    assert [v["accepted"] for v in found["violations"]].count("a toy") == 1
    for told, violation in zip(found["violations"], summary.violations, strict=True):
        assert msgspec.convert(told["case"], Case, strict=False) == violation.case


def test_junit(summary: Summary) -> None:
    suite = ElementTree.fromstring(FORMATS[Format.JUNIT](summary, END, paths_of(summary)))
    assert {case.get("name") for case in suite.iter("testcase")} == set(CHECKS)
    assert (suite.get("tests"), suite.get("failures")) == (str(len(CHECKS)), "1")
    (failed,) = [case for case in suite.iter("testcase") if case.find("failure") is not None]
    assert failed.get("name") == "read-lineage"


def test_sarif(summary: Summary) -> None:
    (run,) = json.loads(FORMATS[Format.SARIF](summary, END, paths_of(summary)))["runs"]
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} == set(CHECKS)
    assert len(run["results"]) == len(summary.violations)
    assert all(result["level"] == "error" for result in run["results"])
    assert [("locations" in r, "suppressions" in r) for r in run["results"]].count((False, True)) == 1


def test_formats_are_all_there() -> None:
    assert set(FORMATS) == set(Format)


def test_every_check_is_explained() -> None:
    for name, check in CHECKS.items():
        text = "\n".join(explained(name))
        assert check.sentence in text
        assert check.why in text
        assert check.severity in text
        assert check.side in text


def test_the_step_table() -> None:
    rows = [Row("a", 16, 4, True, table=[[1, 2], [3]]), Row("b", 0, 8, False, appended=[[], [7]])]
    step = Step(5, rows, finished=["d"], preempted=["c"], zeroes=[1, 2], copies=[Copy(1, 2)])
    step.checkpoints = [Checkpoint("a", 1, 9, 18)]
    head, first, second = render([Line(["+a", "=4"], step, 2, 7, ["key-true"]), Line([], Step(6), 0, None)])
    assert head.split() == ["step", "before", "it", "rows", "zero", "copy", "preempt", "forget", "fly", "free", "broken"]
    assert first.split("  ")[0] == "5"
    for cell in ("+a =4", "a:16+4* =1,2|3", "b:0+8 >|7", "1,2", "1>2 a@18>9", "key-true"):
        assert cell in first
    assert second.split() == [".", "0"]
    assert head.index("copy") == first.index("1>2")


def test_the_table_shows_the_surroundings_of_a_step() -> None:
    lines = [Line([], Step(number), 0, None) for number in range(1, 51)]
    shown = [line.step.number for line in around(lines, 20)]
    assert shown[0] < 20 < shown[-1]
    assert len(shown) < 15
    assert around([], 3) == []


def test_the_story_counts_repetitions() -> None:
    program = Program(some_case().config, (Add("a", ((0, 7),), 2), Schedule(), Schedule(), Abort("a"), ResetCache()))
    told = story(program, 3, "b reads c's bytes")
    assert told.startswith("a arrives with 7 tokens [0..7), answers 2; a step x2; a is aborted; the cache is reset; ")
    assert told.endswith("At step 3: b reads c's bytes")


OPERATIONS = (Add("a", ((0, 4), (9, 10)), 2, 1, "red", "b"), Schedule(), Schedule(), Complete(), Abort("a"), ResetCache())
POOL_OPERATIONS = (Take(), Key(1), Hit(1), Free(1), Free(1))


@pytest.mark.parametrize(("target", "operations"), [("vllm", OPERATIONS), ("vllm-pool", POOL_OPERATIONS), ("toy", OPERATIONS)])
def test_pasteable_programs_are_valid_python(target: str, operations: tuple[object, ...]) -> None:
    program = some_case().program.with_operations(operations)  # type: ignore[arg-type]
    case = msgspec.structs.replace(case_with(program), target=target)
    code = standalone(case)
    ast.parse(code)
    assert ("import kvproof" in code or "from kvproof" in code) == (target == "toy")
    body = "\n".join(operations_text(case))
    assert all(line in code for line in body.splitlines())
    if target == "vllm":
        assert "engine.add('a', range(0, 4), range(9, 10), max_tokens=2, priority=1, salt='red', after='b')" in body
        assert "for _ in range(2):\n    engine.step()" in body


def test_a_program_on_kvproof_builds_the_same_program() -> None:
    case = some_case()
    lines = [line for line in operations_text(case) if "make_harness" not in line and "findings" not in line]
    built: dict[str, object] = {}
    exec("\n".join(lines), built)
    assert built["config"] == case.config
    assert built["operations"] == case.operations


@pytest.mark.parametrize("prelude", PRELUDES.values(), ids=lambda path: path.stem)
def test_programs_run_in_the_environment_that_findings_come_from(prelude: Path) -> None:
    """Whichever is imported first decides on which platform vLLM runs: a CUDA wheel (0.33) is of none unless it is told."""
    calls = [node for node in ast.walk(ast.parse(prelude.read_text())) if isinstance(node, ast.Call)]
    update = [keyword for call in calls if ast.unparse(call.func) == "os.environ.update" for keyword in call.keywords]
    assert {keyword.arg: ast.literal_eval(keyword.value) for keyword in update} == ENVIRONMENT
