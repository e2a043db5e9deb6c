"""The harness: checks that are made in arrears say what they would have said at once."""

from __future__ import annotations

from random import Random

import pytest

from kvproof.audit import session
from kvproof.audit.program import Add, Program
from kvproof.audit.session import Outcome, run_program
from kvproof.audit.target import Target
from kvproof.audit.targets.reference import ReferenceTarget
from kvproof.audit.workload import random_program
from kvproof.reference.faults import FAULTS


def told(target: Target, program: Program) -> tuple[object, ...]:
    """All that a report shows of a run."""
    outcome: Outcome = run_program(target, program)
    shown = [(line.before, line.step, line.in_flight, line.free, sorted(line.faults)) for line in outcome.lines]
    return outcome.findings, shown, outcome.actions, outcome.steps


@pytest.mark.parametrize("fault", [None, *sorted(FAULTS)])
def test_checks_in_arrears_find_what_checks_at_once_find(fault: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    target = ReferenceTarget() if fault is None else ReferenceTarget(fault=fault)
    programs = [random_program(Random(f"arrears/{number}")) for number in range(6)]
    late = [told(target, program) for program in programs]
    monkeypatch.setattr(session, "ARREARS", 1)
    assert [told(target, program) for program in programs] == late


def test_an_older_request_is_named_before_its_names_go() -> None:
    """An id that is used again: what the engine calls prefixes of the request that had it is asked for in time."""
    programs = [random_program(Random(f"again/{number}"), "churn") for number in range(20)]
    assert any(used_again(program) for program in programs)
    for program in programs:
        assert run_program(ReferenceTarget(), program).findings == {}


def used_again(program: Program) -> bool:
    ids = [operation.id for operation in program.operations if isinstance(operation, Add)]
    return len(set(ids)) < len(ids)
