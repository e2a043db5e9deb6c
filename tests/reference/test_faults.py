"""Planted faults: each one changes what an engine does on an ordinary workload, and is seen by a check."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from kvproof.audit.checks import CHECKS
from kvproof.audit.program import Add, Program, Schedule, least_pool
from kvproof.audit.session import run_program
from kvproof.audit.targets.reference import ReferenceTarget
from kvproof.audit.workload import random_program
from kvproof.reference.engine import Engine
from kvproof.reference.faults import FAULTS, Planted
from kvproof.spec.errors import KvproofError
from kvproof.spec.geometry import Geometry
from kvproof.spec.records import Config, Policy

TRIES = 150
PROFILE_FOR = (("small", "preempt"), ("abort", "churn"), ("reset", "churn"), ("fine", "cow"), ("states", "same-step"))


# Where random programs take too long. The first: a and b fill the pool, and in the step in which a fills a block b needs one.
# The second: the oldest cached blocks are the hits of b, and only one block has no name.
SCRIPTS = {
    "credit_survives_cancel": Program(
        Config(Geometry.of(8, unit=8, num_blocks=6), 64, max_model_len=32, policy=Policy.PRIORITY),
        (Add("a", ((0, 12),), 20, priority=1), Schedule(), Add("b", ((50, 72),), 10), *[Schedule()] * 6),
    ),
    "evict_hit": Program(
        Config(Geometry.of(4, (8,), unit=2, num_blocks=8), 64, max_model_len=12),
        (
            Add("a", ((0, 7),), 1),
            *[Schedule()] * 4,
            Add("c", ((50, 57),), 1),
            *[Schedule()] * 4,
            Add("b", ((0, 6), (90, 92)), 1),
            *[Schedule()] * 2,
        ),
    ),
}


def programs(fault: Planted) -> Iterator[Program]:
    """Random programs, bent to what the fault needs to show."""
    if fault.name in SCRIPTS:
        yield SCRIPTS[fault.name]
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
        if "small" in fault.needs:
            config = replace(config, geometry=replace(config.geometry, num_blocks=least_pool(config) + number % 8))
        yield Program(config, program.operations)


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
