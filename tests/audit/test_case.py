"""Case files come back as they went out, and say what is wrong with them where something is."""

import json
import random
from pathlib import Path

import pytest
from tests.audit.toy import FLAT, Toy

from kvproof.audit.case import BadInput, Case, Found, load, pretty, save
from kvproof.audit.engines import Harness
from kvproof.audit.fuzz import Plan, fuzz, replay
from kvproof.audit.program import Abort, Free, Hit, Key, Program, ResetCache, Take
from kvproof.audit.workload import ALL, PROFILES, random_program
from kvproof.spec.faults import Severity

FOUND = Found("read-lineage", "attention, slot partly written", Severity.CORRUPTION, "a reads what b wrote")


def case_with(program: Program) -> Case:
    return Case(1, "toy", "1", FLAT.name, FLAT.origin, FOUND, program.config, program.operations)


def some_case() -> Case:
    return case_with(random_program(random.Random(3), "churn", [FLAT]))


@pytest.mark.parametrize("profile", [ALL, *PROFILES])
def test_round_trip(tmp_path: Path, profile: str) -> None:
    for seed in range(20):
        case = case_with(random_program(random.Random(seed), profile))
        save(case, tmp_path / "case.json")
        assert load(tmp_path / "case.json") == case


def test_round_trip_of_every_operation(tmp_path: Path) -> None:
    program = some_case().program
    every = (*program.operations, Abort("a"), ResetCache(), Take(), Key(1), Hit(1), Free(1))
    save(case_with(program.with_operations(every)), tmp_path / "new" / "case.json")
    assert load(tmp_path / "new" / "case.json").operations == every


def test_a_found_case_replays(tmp_path: Path) -> None:
    harness = Harness.of("toy", Toy("stuck"))
    (violation,) = fuzz(harness, Plan("toy", shapes=(FLAT,), seconds=0.5)).violations
    save(violation.case, tmp_path / "case.json")
    (again,) = replay(harness, load(tmp_path / "case.json"))
    assert (again.identity, again.case) == (violation.identity, violation.case)
    assert replay(Harness.of("toy", Toy()), violation.case) == []


def test_the_name_of_a_case_is_a_file_name() -> None:
    assert some_case().name == "read-lineage-attention-slot-partly-written"


def damaged(**changes: object) -> bytes:
    return json.dumps(json.loads(pretty(some_case())) | changes).encode()


CONFIG = json.loads(pretty(some_case()))["config"]
GEOMETRY = CONFIG["geometry"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b'{"format": 1,\n "target": }', ":2:12: not JSON"),
        (b"", ":1:1: not JSON"),
        (pretty(some_case())[:-40], "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "missing required field `format`"),
        (damaged(format=2), "case format 2"),
        (damaged(release=None), "`$.release`"),
        (damaged(surprise=1), "unknown field `surprise`"),
        (damaged(operations=[{"do": "dance"}]), "`$.operations[0].do`"),
        (damaged(operations=[{"do": "add", "id": "a", "prompt": [[0]], "max_tokens": 1}]), "`$.operations[0].prompt[0]`"),
        (damaged(config={**CONFIG, "depth": "two"}), "`$.config.depth`"),
        (damaged(config={**CONFIG, "depth": 0}), "depth 0"),
        (damaged(config={**CONFIG, "max_batched_tokens": 1}), "max_batched_tokens 1"),
        (damaged(config={**CONFIG, "geometry": {**GEOMETRY, "num_blocks": 3}}), "num_blocks 3"),
        (damaged(config={**CONFIG, "geometry": {**GEOMETRY, "unit": 3}}), "unit 3 does not divide"),
        (damaged(finding={"check": "no-such", "signature": "", "severity": "leak", "what": ""}), "no check is named 'no-such'"),
        (damaged(finding={"check": "no-orphan", "signature": "", "severity": "bad", "what": ""}), "`$.finding.severity`"),
    ],
)
def test_a_damaged_case_is_one_clear_line(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "case.json"
    path.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        load(path)
    message = str(caught.value)
    assert complaint in message
    assert str(path) in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("path", ["nowhere.json", "."])
def test_a_missing_file_is_one_clear_line(tmp_path: Path, path: str) -> None:
    with pytest.raises(BadInput, match="give the path of a file"):
        load(tmp_path / path)
