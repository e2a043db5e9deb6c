"""Planted faults: each one changes what an engine does on an ordinary workload, and is seen by a check."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from kvproof.audit.program import Program, least_pool
from kvproof.audit.session import run_program
from kvproof.audit.targets.reference import ReferenceTarget
from kvproof.audit.workload import random_program
from kvproof.reference.engine import Engine
from kvproof.reference.faults import FAULTS, Planted
from kvproof.spec.checks import CHECKS
from kvproof.spec.errors import KvproofError
from kvproof.spec.geometry import Geometry
from kvproof.spec.records import Config, Policy

TRIES = 150


def programs(fault: Planted) -> list[Program]:
    """Random programs, bent to what the fault needs to show."""
    chosen = []
    for number in range(TRIES):
        profile = next((name for need, name in PROFILE_FOR if need in fault.needs), "all")
        program = random_program(Random(f"fault/{number}"), profile)
        config = program.config
        if config.geometry.scheduler_block > 16:
            continue
        if "async" in fault.needs:
            config = replace(config, depth=2)
        if "fences" in fault.needs:
            config = replace(config, fences=True)
        if "priority" in fault.needs:
            config = replace(config, policy=Policy.PRIORITY, depth=1, fences=False, max_seqs=8)
        if "small" in fault.needs:
            config = replace(config, geometry=replace(config.geometry, num_blocks=least_pool(config) + number % 8))
        chosen.append(Program(config, program.operations))
    return chosen


PROFILE_FOR = (("small", "preempt"), ("abort", "churn"), ("reset", "churn"), ("fine", "cow"), ("states", "same-step"))


def test_there_are_enough() -> None:
    assert len(FAULTS) >= 16
    assert {fault.breaks for fault in FAULTS.values()} <= CHECKS.keys()
    assert all(fault.sentence for fault in FAULTS.values())


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(KvproofError, match="no fault is named"):
        Engine(Config(Geometry.of(4, num_blocks=600)), "typo")


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_seen_by_its_check(name: str) -> None:
    fault = FAULTS[name]
    seen: set[Any] = set()
    for program in programs(fault):
        seen |= {check for check, _ in run_program(ReferenceTarget(name), program).findings}
        if fault.breaks in seen:
            return
    pytest.fail(f"{name} breaks {fault.breaks}, and only {sorted(seen)} saw it")


def test_without_a_fault_nothing_is_seen() -> None:
    for number in range(40):
        outcome = run_program(ReferenceTarget(), random_program(Random(f"clean/{number}")))
        assert outcome.findings == {}
