"""Workloads are deterministic, legal, and lean on what their profile names."""

import random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.audit.toy import FLAT, Toy

from kvproof.audit.program import Abort, Add, Complete, Program, ResetCache, Schedule, impossible, least_pool, runs
from kvproof.audit.session import Session, run_program
from kvproof.audit.workload import ALL, PROFILES, SHAPES, Shape, Yield, programs, random_program, shape_of
from kvproof.spec.geometry import Geometry
from kvproof.spec.records import Policy

NAMES = (ALL, *PROFILES)


def sample(profile: str, count: int = 60, *shapes: Shape) -> list[Program]:
    return [random_program(random.Random(f"{profile}/{i}"), profile, shapes) for i in range(count)]


@pytest.mark.parametrize("profile", NAMES)
def test_the_same_seed_gives_the_same_programs(profile: str) -> None:
    assert sample(profile, 5) == sample(profile, 5)
    assert random_program(random.Random(1), profile) != random_program(random.Random(2), profile)


@pytest.mark.parametrize("profile", NAMES)
def test_programs_are_legal_and_of_moderate_length(profile: str) -> None:
    for program in sample(profile):
        assert impossible(program.config) is None
        assert 20 <= len(program.operations) <= 75
        assert all(add.prompt or add.after for add in program.adds)


def test_lengths_lie_around_boundaries_of_units_and_blocks() -> None:
    off: dict[str, set[int]] = {shape: set() for shape in SHAPES}
    for profile in PROFILES:
        for program in sample(profile, 150):
            geometry = program.config.geometry
            for add in program.adds:
                if add.after is None:
                    off[shape_of(geometry).name].add(len(add.tokens) % geometry.scheduler_block)
    for name, seen in off.items():
        unit, block = SHAPES[name].base.unit, SHAPES[name].base.scheduler_block
        assert {0, 1, block - 1} <= seen, name
        if unit < block:
            assert {0, 1, unit - 1} <= {n % unit for n in seen if unit < n < block - unit}, name
        assert all(min(n % unit, unit - n % unit) <= 2 for n in seen), f"{name}: a length far from any boundary"


def test_all_geometries_with_dense_and_sparse_retention() -> None:
    seen = {(shape_of(p.config.geometry).name, p.config.geometry.retention) for p in sample(ALL, 400)}
    assert seen == {(name, retention) for name in SHAPES for retention in (None, 0)}


def arrivals_in_a_row(program: Program) -> int:
    most = row = 0
    for operation in program.operations:
        row = row + 1 if isinstance(operation, Add) else 0
        most = max(most, row)
    return most


def shared_starts(program: Program) -> list[int]:
    """Lengths of the first runs of prompts that begin as another one does."""
    first = [add.prompt[0] for add in program.adds if add.prompt and add.after is None]
    return [stop - start for start, stop in first if sum(1 for other, _ in first if other == start) > 1]


def test_profile_same_step() -> None:
    assert all(arrivals_in_a_row(program) >= 2 and shared_starts(program) for program in sample("same-step"))


def test_profile_cow() -> None:
    inside = [
        length % program.config.geometry.scheduler_block != 0 for program in sample("cow") for length in shared_starts(program)
    ]
    assert sum(inside) > 0.6 * len(inside)


def test_profile_preempt() -> None:
    some = sample("preempt")
    assert all(p.config.geometry.num_blocks <= 1.25 * least_pool(p.config) for p in some)
    assert {p.config.policy for p in some} == set(Policy)
    assert max(add.max_tokens for p in some for add in p.adds) >= 24


def test_profile_async() -> None:
    some = sample("async")
    assert {p.config.depth for p in some} == {2, 3}
    assert {p.config.fences for p in some} == {False, True}
    assert any(isinstance(operation, Complete) for p in some for operation in p.operations)


def test_profile_churn() -> None:
    some = sample("churn")
    kinds = {type(operation) for p in some for operation in p.operations}
    assert {Abort, ResetCache, Schedule} <= kinds
    assert any(len({add.id for add in p.adds}) < len(p.adds) for p in some), "no id comes again"
    assert any(add.salt for p in some for add in p.adds)


@given(programs("same-step", [SHAPES["8/8"]]))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
def test_hypothesis_draws_the_same_kind_of_programs(program: Program) -> None:
    assert impossible(program.config) is None
    assert shape_of(program.config.geometry).name == "8/8"


@given(st.lists(st.integers(0, 9)))
def test_runs_say_the_same_tokens(tokens: list[int]) -> None:
    assert list(Add("a", runs(tokens), 1).tokens) == tokens


def test_unknown_geometries_are_named_after_their_sizes() -> None:
    assert shape_of(Geometry.of(32, (32,), unit=8)).origin is Yield.TWIN
    named = shape_of(Geometry.of(8, (32,), unit=8))
    assert (named.name, named.origin) == ("8/32", Yield.LEGAL)


@pytest.mark.parametrize("keep", [range(0, 999, 2), range(1, 999, 3), range(0)])
def test_any_subsequence_of_a_program_is_a_program(keep: range) -> None:
    for program in sample("churn", 10, FLAT):
        kept = [operation for index, operation in enumerate(program.operations) if index in keep]
        assert run_program(Toy(), program.with_operations(kept)).findings == {}


def test_operations_that_do_not_apply_do_nothing() -> None:
    program = random_program(random.Random(0), ALL, [FLAT])
    toy = Toy()
    toy.reset(program.config)
    session = Session(toy, program.config)
    for operation in (Abort("nobody"), Complete(), Add("a", (), 1), Add("a", ((0, 99_999),), 1), Add("a", ((0, 3),), 0)):
        session.do(operation)
    assert not toy.busy()
    session.do(Add("a", ((0, 3),), 2))
    session.do(Add("a", ((0, 4),), 2))  # still alive
    assert len(toy.waiting["a"].prompt) == 3
    session.do(Schedule())
    session.do(Complete())
    session.do(Add("b", ((7, 8),), 1, after="a"))
    assert toy.waiting["b"].prompt[:3] == (0, 1, 2)
    assert len(toy.waiting["b"].prompt) == 5, "prompt, one token of the answer, one of its own"
