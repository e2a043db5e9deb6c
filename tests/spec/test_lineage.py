"""Lineages are identities, contents answer keys as a block of slots would, `extends` and `covers` promise no more."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.spec.geometry import Geometry, Group, Kind
from kvproof.spec.lineage import UNKNOWN, ZERO, Content, Forest, Key, Lineage, Path, Rows, StateAt, written

BLOCK = 4
ATTENTION, STATE = Geometry.of(BLOCK, (BLOCK,), unit=1).groups
TEXTS = st.lists(st.integers(0, 1), min_size=2 * BLOCK, max_size=2 * BLOCK)


def test_equal_prefixes_are_one_object_and_others_are_not() -> None:
    """Exhaustive: texts of up to five tokens over two tokens, two namespaces."""
    forest = Forest()
    seen: dict[int, tuple[object, tuple[int, ...]]] = {}
    for namespace in (None, "salt"):
        for size in range(6):
            for text in product((0, 1), repeat=size):
                lineage = forest.root(namespace).extended(text)
                assert lineage is forest.root(namespace).extended(iter(text))
                assert seen.setdefault(id(lineage), (namespace, text)) == (namespace, text)
                assert (lineage.length, tuple(lineage.tokens())) == (size, text)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 1), max_size=40), st.lists(st.integers(0, 1), max_size=40))
def test_prefix_and_starts_with(one: list[int], other: list[int]) -> None:
    root = Forest().root()
    a, b = root.extended(one), root.extended(other)
    for length in range(len(one) + 1):
        assert a.prefix(length) is root.extended(one[:length])
    assert a.starts_with(b) == (one[: len(other)] == other)
    assert a.starts_with(a)
    with pytest.raises(IndexError, match="of a lineage of"):
        a.prefix(len(one) + 1)


def test_a_negative_prefix_is_refused() -> None:
    with pytest.raises(IndexError, match=r"prefix\(-1\) of a lineage of 3 tokens"):
        Forest().root().extended([1, 2, 3]).prefix(-1)


def test_only_prefixes_that_are_asked_for_are_made() -> None:
    root = Forest().root()
    one, other = (root.extended([0] * 5_000 + [end] * 5_000) for end in (1, 2))
    assert one.prefix(4_000) is other.prefix(4_000)
    assert one.prefix(5_001) is not other.prefix(5_001)
    assert len(one.line) == 4


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 1), max_size=20), st.integers(0, 20))
def test_a_path_grows_into_the_same_lineages(text: list[int], cut: int) -> None:
    root = Forest().root()
    path = Path(root, text[:cut])
    path.extend(iter(text[cut:]))
    assert len(path) == len(text)
    assert list(path) == [root.extended(text[:length]) for length in range(len(text) + 1)]
    assert path[len(text)] is root.extended(text)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(1, 6))
def test_a_key_knows_its_slot(length: int, block_size: int) -> None:
    group = Group(0, Kind.APPEND_ONLY, block_size)
    key = Forest().root().extended([0] * length).key(group)
    assert key is key.lineage.key(group)
    assert key.base <= length - 1 < key.base + block_size
    assert key.base == key.slot * block_size
    assert key.partial == (length < key.base + block_size)


# Contents. The model of an append-only block is a dict from token position to the lineage that wrote the slot; that of a
# state block is one lineage. The block in question is the second one of a request: positions BLOCK to 2 * BLOCK - 1.


History = tuple[list[Path], list[tuple[int, int, int]]]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Some texts with common prefixes, and writes (text, start, stop) into the second block."""
    root = Forest().root()
    paths = [Path(root, text) for text in draw(st.lists(TEXTS, min_size=1, max_size=3))]
    positions = st.integers(BLOCK, 2 * BLOCK)
    spans = st.tuples(positions, positions).filter(lambda span: span[0] != span[1]).map(sorted)
    writes = draw(st.lists(st.tuples(st.integers(0, len(paths) - 1), spans), max_size=4))
    return paths, [(text, start, stop) for text, (start, stop) in writes]


def write(content: Content, group: Group, path: Path, start: int, stop: int) -> Content:
    return written(content, group, start, stop, path[2 * BLOCK])


def keys_of(paths: list[Path], group: Group) -> list[Key]:
    return [path[length].key(group) for path in paths for length in range(BLOCK + 1, 2 * BLOCK + 1)]


def slots_answer(slots: dict[int, Lineage], key: Key) -> bool:
    return all(slots.get(t) is key.lineage.prefix(t + 1) for t in range(BLOCK, key.lineage.length))


@settings(derandomize=True, deadline=None, max_examples=150)
@given(histories(), st.sampled_from([UNKNOWN, ZERO]))
def test_rows_answer_like_slots(history: History, first: Content) -> None:
    paths, writes = history
    content, slots = first, {}
    for text, start, stop in writes:
        before = content
        content = write(content, ATTENTION, paths[text], start, stop)
        slots.update({t: paths[text][t + 1] for t in range(start, stop)})
        keys = keys_of(paths, ATTENTION)
        assert [content.answers(key) for key in keys] == [slots_answer(slots, key) for key in keys]
        assert not any(content.answers(key) for key in keys_of(paths, STATE))
        assert isinstance(content, Rows)
        runs = [(start, wrote.length) for start, wrote in content.runs]
        assert all(start < stop for start, stop in runs)
        assert all(one[1] <= two[0] for one, two in pairwise(runs)), "in order, no overlap"
        if content.extends(before):
            assert all(content.answers(key) for key in keys if before.answers(key))


@settings(derandomize=True, deadline=None, max_examples=150)
@given(histories())
def test_a_state_answers_exactly_its_prefix(history: History) -> None:
    paths, writes = history
    content: Content = UNKNOWN
    for text, start, stop in writes:
        before = content
        content = write(content, STATE, paths[text], start, stop)
        keys = keys_of(paths, STATE)
        assert [content.answers(key) for key in keys] == [key.lineage is paths[text][stop] for key in keys]
        assert not any(content.answers(key) for key in keys_of(paths, ATTENTION))
        assert content.extends(before) == (not isinstance(before, StateAt) or before.lineage is paths[text][stop])


@settings(derandomize=True, deadline=None, max_examples=120)
@given(histories(), st.integers(0, 4))
def test_extends_and_covers_hold_between_any_contents_and_keys(history: History, cut: int) -> None:
    """Two blocks of each group, written by the first and by the other writes of a history."""
    paths, writes = history
    contents: list[Content] = [UNKNOWN, ZERO]
    for group in (ATTENTION, STATE):
        for part in (writes[:cut], writes[cut:]):
            content = UNKNOWN
            for text, start, stop in part:
                content = write(content, group, paths[text], start, stop)
            contents.append(content)
    keys = keys_of(paths, ATTENTION) + keys_of(paths, STATE)
    answers = {id(content): {key for key in keys if content.answers(key)} for content in contents}
    for x, y in product(contents, contents):
        if x.extends(y):
            assert answers[id(x)] >= answers[id(y)]
    for key in keys:
        for shorter in keys:
            if key.covers(shorter):
                assert all(shorter in found for found in answers.values() if key in found)
    assert all(content.extends(content) and content.extends(UNKNOWN) for content in contents[2:])


@settings(derandomize=True, deadline=None, max_examples=100)
@given(TEXTS, st.lists(st.integers(BLOCK, 2 * BLOCK), min_size=2, unique=True).map(sorted))
def test_one_text_written_in_order_is_one_run(text: list[int], cuts: list[int]) -> None:
    path, content = Path(Forest().root(), text), UNKNOWN
    for start, stop in pairwise(cuts):
        content = write(content, ATTENTION, path, start, stop)
    assert isinstance(content, Rows)
    assert content.runs == ((cuts[0], path[cuts[-1]]),)
    again = write(content, ATTENTION, path, cuts[0], cuts[1])
    assert isinstance(again, Rows)
    assert again.runs == content.runs, "the same bytes again"


def test_a_longer_text_answers_the_keys_of_a_shorter_one() -> None:
    path = Path(Forest().root(), range(8))
    rows = written(UNKNOWN, ATTENTION, 4, 8, path[8])
    assert [rows.answers(path[n].key(ATTENTION)) for n in (4, 5, 6, 7, 8)] == [False, True, True, True, True]
    assert path[8].key(ATTENTION).covers(path[6].key(ATTENTION))
    assert not path[6].key(ATTENTION).covers(path[8].key(ATTENTION))
    assert not path[8].key(ATTENTION).covers(path[4].key(ATTENTION)), "another block"
    assert not path[8].key(STATE).covers(path[6].key(STATE))
    assert not path[8].key(ATTENTION).covers(path[8].key(STATE))
