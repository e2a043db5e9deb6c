"""Lookups against their definitions by brute force."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.spec.geometry import Geometry, Group, Kind
from kvproof.spec.lineage import Forest, Key, Path
from kvproof.spec.lookup import Hit, common_hit, hit_keys, longest_append_only, longest_state

GEOMETRIES = st.builds(
    lambda unit, append_only, states: Geometry.of(unit * append_only, tuple(unit * s for s in states), unit=unit),
    st.integers(1, 3),
    st.integers(1, 4),
    st.lists(st.integers(1, 4), max_size=2),
)


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Geometry, Path, set[Key]]:
    """A geometry, a text, and the keys that can be found: some of the text's own, some of a text that parts from it."""
    geometry = draw(GEOMETRIES)
    length = draw(st.integers(0, 30))
    path = Path(Forest().root(), range(length))
    parting = draw(st.integers(0, length))
    other = Path(path[parting], [99] * (length - parting))
    names = [path[n] for n in range(geometry.unit, length + 1, geometry.unit)]
    names += [other[n - parting] for n in range(parting, length + 1) if n % geometry.unit == 0 and n > parting]
    keys = [name.key(group) for name in names for group in geometry.groups]
    found = draw(st.sets(st.sampled_from(keys), max_size=len(keys)) if keys else st.just(set()))
    return geometry, path, found


def covers(found: set[Key], path: Path, group: Group, unit: int, length: int, reach: int) -> bool:
    """Whether the group can serve exactly `length` tokens of the text."""
    if length == 0:
        return True
    if group.kind is Kind.STATE:
        return path[length].key(group) in found
    size = group.block_size
    full = all(path[end].key(group) in found for end in range(size, length + 1, size))
    tails = range(-(-length // unit) * unit, min(group.blocks_for(length) * size, reach) + 1, unit)
    return full and (length % size == 0 or any(path[end].key(group) in found for end in tails))


@settings(derandomize=True, deadline=None, max_examples=150)
@given(scenes(), st.integers(0, 30))
def test_longest_append_only_is_the_greatest_covered_and_downward_closed(
    scene: tuple[Geometry, Path, set[Key]], limit: int
) -> None:
    geometry, path, found = scene
    group, unit, limit = geometry.groups[0], geometry.unit, min(limit, len(path))
    longest = longest_append_only(found.__contains__, path, group, unit, limit)
    boundaries = range(0, limit + 1, unit)
    assert longest == max(n for n in boundaries if covers(found, path, group, unit, n, limit))
    assert all(covers(found, path, group, unit, n, limit) for n in boundaries if n <= longest)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(scenes(), st.integers(0, 30))
def test_longest_state_is_the_greatest_exact_one(scene: tuple[Geometry, Path, set[Key]], limit: int) -> None:
    geometry, path, found = scene
    limit = min(limit, len(path))
    for group in geometry.states:
        for grain in (geometry.unit, geometry.scheduler_block):
            longest = longest_state(found.__contains__, path, group, grain, limit)
            exact = [n for n in range(0, limit + 1, grain) if n == 0 or path[n].key(group) in found]
            assert longest == max(exact)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(scenes(), st.booleans())
def test_common_hit_is_the_greatest_that_all_groups_cover(scene: tuple[Geometry, Path, set[Key]], far: bool) -> None:
    geometry, path, found = scene
    most = max(len(path) - 1, 0)
    reach = len(path) if far else most
    hit = common_hit(found.__contains__, path, geometry, reach if far else None)

    grain = geometry.unit if geometry.fine else geometry.scheduler_block
    ends = range(0, most + 1, grain)
    groups = {g: [n for n in ends if covers(found, path, g, geometry.unit, n, reach)] for g in geometry.groups}
    assert hit.length == max(set(ends).intersection(*groups.values()))
    longest = max(groups[geometry.groups[0]])
    assert hit.junction == (longest if longest > hit.length else 0)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(scenes(), st.booleans())
def test_hit_keys_are_found_fill_the_slots_and_cover_the_hit(scene: tuple[Geometry, Path, set[Key]], far: bool) -> None:
    geometry, path, found = scene
    reach = len(path) if far else max(len(path) - 1, 0)
    length = common_hit(found.__contains__, path, geometry, reach).length
    for group in geometry.groups:
        keys = hit_keys(found.__contains__, path, group, geometry.unit, length, reach)
        assert len(keys) == group.blocks_for(length)
        for slot, key in enumerate(keys):
            if key is None:
                assert group.kind is Kind.STATE
                assert slot < len(keys) - 1
                continue
            assert key in found
            assert key.slot == slot
            end = min(length, (slot + 1) * group.block_size)
            assert key.covers(path[end].key(group))


def test_exhaustive_one_block_of_each_kind() -> None:
    """Append-only blocks of 2, state blocks of 4, unit 1, five tokens: every set of keys of the two groups."""
    geometry = Geometry.of(2, (4,), unit=1)
    path = Path(Forest().root(), range(5))
    attention, state = geometry.groups
    keys = [path[n].key(group) for group in geometry.groups for n in range(1, 5)]
    for bits in product((False, True), repeat=len(keys)):
        found = {key for key, bit in zip(keys, bits, strict=True) if bit}
        both = [n for n in range(5) if all(covers(found, path, g, 1, n, 4) for g in (attention, state))]
        assert common_hit(found.__contains__, path, geometry).length == max(both)


def test_a_dict_from_keys_to_blocks_serves_as_keyed() -> None:
    geometry = Geometry.of(4, (8,), unit=2)
    path = Path(Forest().root(), range(20))
    attention, state = geometry.groups
    index = {path[n].key(attention): {n} for n in (4, 8, 10)} | {path[8].key(state): {80}, path[6].key(state): set()}
    assert common_hit(index.get, path, geometry) == Hit(8, junction=10)


def test_a_promoted_block_answers_the_resend_of_its_text_only_to_a_lookup_that_reaches_its_end() -> None:
    """Eight tokens fill a block whose key at 6 gave way to that at 8. vLLM probes up to 7 and finds nothing."""
    geometry = Geometry.of(8, (8,), unit=2)
    path = Path(Forest().root(), range(8))
    attention, state = geometry.groups
    found = {path[8].key(attention), path[6].key(state)}
    assert common_hit(found.__contains__, path, geometry) == Hit(0, junction=0)
    assert common_hit(found.__contains__, path, geometry, reach=8) == Hit(6, junction=0)


def test_without_fine_hits_a_hit_ends_on_the_scheduler_block() -> None:
    geometry = Geometry.of(6, (4,), unit=2)
    coarse = Geometry.of(8, (4,), unit=4)
    assert geometry.fine
    assert not coarse.fine
    path = Path(Forest().root(), range(25))
    found = {path[n].key(group) for group in coarse.groups for n in range(4, 25, 4)}
    assert common_hit(found.__contains__, path, coarse) == Hit(24, 0)
    assert common_hit(found.__contains__, Path(path[0], range(24)), coarse) == Hit(16, 0)
