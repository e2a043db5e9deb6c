"""Prefix names: chained, injective, the same at every block size."""

from __future__ import annotations

from hashlib import sha256
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.spec.hashing import digests, root_digest, unit_digest
from kvproof.spec.lineage import Forest, Lineage

TEXTS = st.lists(st.integers(0, 2), max_size=24)
UNITS = st.integers(1, 4)
NAMESPACES = st.sampled_from([None, "", "salt", "adapter", ("salt", 7), 0])


@settings(derandomize=True, deadline=None)
@given(TEXTS, TEXTS, UNITS, NAMESPACES)
def test_names_do_not_change_as_the_text_grows(text: list[int], more: list[int], unit: int, namespace: object) -> None:
    names, longer = digests(text, unit, namespace), digests(text + more, unit, namespace)
    assert len(names) == len(text) // unit + 1
    assert longer[: len(names)] == names
    assert names[0] == root_digest(namespace)


@settings(derandomize=True, deadline=None)
@given(TEXTS, UNITS, st.integers(1, 4))
def test_a_block_is_named_by_its_last_unit(text: list[int], unit: int, factor: int) -> None:
    names = digests(text, unit)
    assert names[factor::factor] == [names[stop // unit] for stop in range(unit * factor, len(text) + 1, unit * factor)]


@pytest.mark.parametrize("unit", [1, 2, 3])
def test_different_prefixes_have_different_digests(unit: int) -> None:
    """Exhaustive: all texts of up to six tokens over two tokens, two namespaces."""
    forest = Forest()
    seen: dict[bytes, Lineage] = {}
    for namespace in (None, "salt"):
        for size in range(0, 7, unit):
            for text in product((0, 1), repeat=size):
                lineage = forest.root(namespace).extended(text)
                assert seen.setdefault(digests(text, unit, namespace)[-1], lineage) is lineage
    assert len(seen) == 2 * sum(2**size for size in range(0, 7, unit))


@settings(derandomize=True, deadline=None)
@given(TEXTS, UNITS, NAMESPACES, NAMESPACES)
def test_namespaces_share_nothing(text: list[int], unit: int, one: object, other: object) -> None:
    assert bool(set(digests(text, unit, one)) & set(digests(text, unit, other))) == (one == other)


def test_the_first_difference_changes_every_later_name() -> None:
    one, other = digests([1, 2, 3, 4, 5, 6], 2), digests([1, 2, 9, 4, 5, 6], 2)
    assert [a == b for a, b in zip(one, other, strict=True)] == [True, True, False, False]


def test_the_encoding_is_pinned() -> None:
    """What an engine in another language has to compute."""
    root = sha256(b'kvproof\0"salt"').digest()
    first = sha256(root + bytes([1] + [0] * 7 + [2] + [0] * 7)).digest()
    assert root_digest("salt") == root
    assert unit_digest(root, [1, 2]) == first
    assert digests([1, 2, 3], 2, "salt") == [root, first]
    assert first.hex() == "37bd3973f8ec15ffa71201ef3d07337cab16a113b7106cedd75e9a79ea633db0"
