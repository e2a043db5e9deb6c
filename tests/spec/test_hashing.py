"""Prefix names: chained, injective, and a coarser view that follows the chain."""

from __future__ import annotations

from hashlib import sha256
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.spec.errors import GeometryError
from kvproof.spec.geometry import Geometry
from kvproof.spec.hashing import Chain, digest, prefix_keys, root_digest, unit_digest
from kvproof.spec.lineage import Forest, Lineage, Path

TEXTS = st.lists(st.integers(0, 2), max_size=24)
UNITS = st.integers(1, 4)
FACTORS = st.integers(1, 4)
NAMESPACES = st.sampled_from([None, "", "salt", "adapter", ("salt", 7), 0])


@settings(derandomize=True, deadline=None)
@given(TEXTS, UNITS, NAMESPACES, st.data())
def test_a_chain_grown_in_pieces_names_each_unit_boundary_as_the_lineage_does(
    text: list[int], unit: int, namespace: object, data: st.DataObject
) -> None:
    chain = Chain(unit, namespace)
    at = 0
    while at < len(text):
        to = data.draw(st.integers(at + 1, len(text)))
        chain.extend(iter(text[at:to]))
        at = to
    path = Path(Forest().root(namespace), text)
    assert list(chain) == [digest(path[n], unit) for n in range(unit, len(text) + 1, unit)]
    assert chain.root == digest(path[0], unit)
    assert len(chain) == len(text) // unit


@settings(derandomize=True, deadline=None)
@given(TEXTS, TEXTS, UNITS, FACTORS)
def test_a_view_agrees_with_the_chain_and_follows_it(text: list[int], more: list[int], unit: int, factor: int) -> None:
    chain = Chain(unit, None, text)
    view = chain.view(unit * factor)
    for part in ([], more):
        chain.extend(part)
        ends = range(factor, len(chain) + 1, factor)
        assert list(view) == [chain[end - 1] for end in ends]
        assert [view[i] for i in range(len(view))] == list(view)
    if len(view):
        assert view[-1] == view[len(view) - 1]
    with pytest.raises(IndexError):
        view[len(view)]
    with pytest.raises(IndexError):
        view[-len(view) - 1]


@settings(derandomize=True, deadline=None)
@given(TEXTS, UNITS, FACTORS)
def test_block_keys_are_the_unit_keys_at_block_ends(text: list[int], unit: int, factor: int) -> None:
    geometry = Geometry.of(unit * factor, unit=unit)
    group = geometry.groups[0]
    path = Path(Forest().root(), text)
    fine = list(prefix_keys(path, group, unit))
    coarse = list(prefix_keys(path, group, group.block_size))
    assert coarse == fine[factor - 1 :: factor]
    assert [key.lineage.length for key in fine] == list(range(unit, len(text) + 1, unit))
    assert all(key.lineage is path[key.lineage.length] for key in fine)
    assert [key for key in fine if not key.partial] == coarse


@pytest.mark.parametrize("unit", [1, 2, 3])
def test_different_prefixes_have_different_digests(unit: int) -> None:
    """Exhaustive: all texts of up to six tokens over two tokens, two namespaces."""
    forest = Forest()
    seen: dict[bytes, Lineage] = {}
    for namespace in (None, "salt"):
        for size in range(0, 7, unit):
            for text in product((0, 1), repeat=size):
                lineage = forest.root(namespace).extended(text)
                assert seen.setdefault(digest(lineage, unit), lineage) is lineage
    assert len(seen) == 2 * sum(2**size for size in range(0, 7, unit))


@settings(derandomize=True, deadline=None)
@given(TEXTS, UNITS, NAMESPACES, NAMESPACES)
def test_namespaces_share_nothing(text: list[int], unit: int, one: object, other: object) -> None:
    shared = set(Chain(unit, one, text)) & set(Chain(unit, other, text))
    assert bool(shared) == (one == other and len(text) >= unit)
    assert (root_digest(one) == root_digest(other)) == (one == other)


def test_the_first_difference_changes_every_later_name() -> None:
    one, other = Chain(2, None, [1, 2, 3, 4, 5, 6]), Chain(2, None, [1, 2, 9, 4, 5, 6])
    assert [a == b for a, b in zip(one, other, strict=True)] == [True, False, False]


def test_the_encoding_is_pinned() -> None:
    """What an engine in another language has to compute."""
    root = sha256(b'kvproof\0"salt"').digest()
    first = sha256(root + bytes([1] + [0] * 7 + [2] + [0] * 7)).digest()
    assert root_digest("salt") == root
    assert unit_digest(root, [1, 2]) == first
    assert list(Chain(2, "salt", [1, 2, 3])) == [first]
    assert first.hex() == "37bd3973f8ec15ffa71201ef3d07337cab16a113b7106cedd75e9a79ea633db0"


def test_a_lineage_inside_a_unit_has_no_digest() -> None:
    lineage = Forest().root().extended([1, 2, 3])
    with pytest.raises(GeometryError, match="3 tokens has no digest at unit 2: name its prefix of 2 tokens"):
        digest(lineage, 2)


@pytest.mark.parametrize("block_size", [0, -2, 3])
def test_a_view_needs_a_multiple_of_the_unit(block_size: int) -> None:
    with pytest.raises(GeometryError, match="unit 2 does not divide block size"):
        Chain(2).view(block_size)
