"""Sizes: what a geometry derives and what it refuses."""

from __future__ import annotations

from math import lcm

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.spec.errors import GeometryError, KvproofError
from kvproof.spec.geometry import Geometry, Group, Kind

SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=4)


@settings(derandomize=True, deadline=None)
@given(SIZES, st.integers(0, 200))
def test_the_scheduler_block_ends_a_block_of_every_group(sizes: list[int], tokens: int) -> None:
    geometry = Geometry.of(sizes[0], tuple(sizes[1:]))
    assert geometry.scheduler_block == lcm(*sizes)
    assert all(size % geometry.unit == 0 for size in sizes)
    assert geometry.fine == any(size > geometry.unit for size in sizes[1:])
    assert [group.block_size for group in geometry.states] == sizes[1:]
    for group in geometry.groups:
        slots = group.blocks_for(tokens)
        assert (slots - 1) * group.block_size < tokens <= slots * group.block_size or tokens == slots == 0


def test_of_builds_one_append_only_group_and_a_state_group_per_size() -> None:
    geometry = Geometry.of(128, (512, 256), unit=16, num_blocks=9, retention=512, checkpoint=True)
    assert geometry.groups == (
        Group(0, Kind.APPEND_ONLY, 128),
        Group(1, Kind.STATE, 512, checkpoint=True),
        Group(2, Kind.STATE, 256, checkpoint=True),
    )
    assert (geometry.unit, geometry.num_blocks, geometry.retention, geometry.fine) == (16, 9, 512, True)
    assert Geometry.of(128, (512,)).unit == 128
    assert not Geometry.of(16).fine
    assert not Geometry.of(16, unit=4).fine, "hits inside a block need a state group that is longer than the unit"


@settings(derandomize=True, deadline=None)
@given(SIZES, st.integers(-2, 13), st.integers(-1, 4), st.one_of(st.none(), st.integers(-2, 3)))
def test_a_geometry_is_refused_or_sound(sizes: list[int], unit: int, num_blocks: int, segments: int | None) -> None:
    """Retention is drawn in halves of the scheduler block."""
    retention = None if segments is None else segments * lcm(*sizes) // 2
    try:
        geometry = Geometry.of(sizes[0], tuple(sizes[1:]), unit=unit, num_blocks=num_blocks, retention=retention)
    except GeometryError:
        sound = unit >= 1 and all(size % unit == 0 for size in sizes) and num_blocks >= 2
        assert not (sound and (retention is None or (retention >= 0 and retention % lcm(*sizes) == 0)))
    else:
        assert geometry.unit >= 1
        assert geometry.num_blocks >= 2
        assert geometry.retention is None or geometry.retention >= 0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Geometry.of(0), "group 0: block size 0 is not positive"),
        (lambda: Geometry.of(16, (-8,)), "group 1: block size -8 is not positive"),
        (
            lambda: Geometry.of(400, (400,), unit=32),
            "unit 32 does not divide block size 400 of group 0: choose a divisor of 400",
        ),
        (lambda: Geometry.of(16, unit=0), "unit 0 does not divide"),
        (lambda: Geometry.of(16, num_blocks=1), "a pool needs the null block and at least one more"),
        (lambda: Geometry.of(16, (64,), retention=16), "retention 16 is negative or not a multiple of the scheduler block 64"),
        (lambda: Geometry.of(16, (64,), retention=-64), "retention -64"),
        (lambda: Geometry((Group(1, Kind.STATE, 4),), 4, 8), "group 1 is at position 0"),
    ],
)
def test_errors_name_the_value_the_rule_and_the_remedy(build: object, message: str) -> None:
    assert callable(build)
    with pytest.raises(GeometryError, match=message) as caught:
        build()
    assert isinstance(caught.value, KvproofError)
    assert isinstance(caught.value, ValueError)
