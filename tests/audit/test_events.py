"""Replay of KV events: a true stream is silent, and each lie has its own fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.audit.checks import CHECKS
from kvproof.audit.events import Residency
from kvproof.spec.faults import Fault, Severity
from kvproof.spec.records import Cleared, Event, Removed, Stored


def stored(*hashes: object, parent: object = None, group: int = 0, tokens: int | None = None, size: int = 4) -> Stored:
    return Stored(group, hashes, parent, tuple(range(len(hashes) * size if tokens is None else tokens)), size)


def checks(faults: Iterable[Fault]) -> list[tuple[str, str]]:
    """What fired, after a look at the form of each fault."""
    faults = list(faults)
    for fault in faults:
        assert CHECKS[fault.check].severity is Severity.EVENT
        assert fault.severity is None
        assert fault.what
        assert not any(character.isdigit() for character in fault.signature)
    return [(fault.check, fault.signature) for fault in faults]


def test_a_chain_may_grow_in_any_group_and_outlive_its_root() -> None:
    listener = Residency()
    assert listener.consume([stored("A", "B"), stored("C", parent="B"), Removed(0, ("B",))]) == []
    assert listener.consume([stored("D", parent="B"), stored("D", parent="C", group=1, size=8)]) == []
    assert [listener.blocks(0, digest) for digest in "ABCD"] == [1, 0, 1, 1]
    assert listener.blocks(1, "D") == 1
    assert listener.compare({(0, "A"): 1, (0, "C"): 1, (0, "D"): 1, (1, "D"): 1, (1, "E"): 0}) == []


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (stored("B", parent="X"), [("event-parent", "stored, unknown parent")]),
        (stored(parent="A", tokens=8), [("event-shape", "stored, no hashes")]),
        (stored("B", parent="A", tokens=12), [("event-shape", "stored, tokens of blocks that it leaves out")]),
        (stored("B", parent="A", tokens=3), [("event-shape", "stored, tokens do not fit")]),
        (stored("B", parent="A", tokens=6), [("event-shape", "stored, tokens do not fit")]),
        (stored("B", parent="A", tokens=0), [("event-shape", "stored, tokens do not fit")]),
        (Removed(0, ("B",)), [("event-residency", "removed, not resident")]),
        (Removed(1, ("A",)), [("event-residency", "removed, not resident")]),
        (Removed(0, ("A", "A")), [("event-residency", "removed, not resident")]),
        (Removed(0, ()), [("event-shape", "removed, no hashes")]),
    ],
)
def test_a_lie(event: Event, expected: list[tuple[str, str]]) -> None:
    listener = Residency()
    assert listener.consume([stored("A")]) == []
    faults = listener.consume([event], step=7)
    assert checks(faults) == expected
    assert {fault.step for fault in faults} == {7}


def test_a_parent_from_before_a_clear_is_unknown() -> None:
    listener = Residency()
    assert listener.consume([stored("A"), Cleared()]) == []
    assert listener.compare({}) == []
    assert checks(listener.consume([stored("B", parent="A")])) == [("event-parent", "stored, unknown parent")]


def test_a_partial_block_after_a_boundary_that_nobody_announced() -> None:
    """vLLM 58119: block 8, unit 2, prompt boundary 14. The event names the hash at 12 as the parent."""
    listener = Residency()
    found = checks(listener.consume([stored("at 8", size=8), stored("at 14", parent="at 12", size=2)]))
    assert found == [("event-parent", "stored, unknown parent")]


def test_storing_twice_is_a_lie_only_without_a_second_block() -> None:
    listener = Residency()
    twice = [stored("A"), stored("A")]
    assert listener.consume(twice) == []
    assert listener.compare({(0, "A"): 2}) == []
    assert checks(listener.compare({(0, "A"): 1})) == [("event-residency", "index, fewer blocks than announced")]
    assert listener.compare({(0, "A"): 1}) == []  # said once


def test_both_ways_to_differ_from_the_index() -> None:
    listener = Residency()
    assert listener.consume([stored(b"\x01" * 32, "B")]) == []
    faults = listener.compare({(0, "B"): 3, (1, "C"): 1}, step=9)
    assert checks(faults) == [
        ("event-residency", "index, more blocks than announced"),
        ("event-residency", "index, fewer blocks than announced"),
    ]
    assert "2 hashes differ; B of group 0: 1 blocks by the events, 3 in the index" in faults[0].what
    assert "1 hashes differ; 010101010101 of group 0" in faults[1].what
    assert {fault.step for fault in faults} == {9}
    assert [listener.blocks(0, "B"), listener.blocks(1, "C")] == [3, 1]


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("store"), st.integers(1, 9), st.integers(0, 1), st.integers(0, 5)),
            st.tuples(st.just("take"), st.integers(1, 9), st.integers(0, 1), st.just(0)),
            st.tuples(st.just("clear"), st.just(0), st.just(0), st.just(0)),
        ),
        max_size=40,
    )
)
def test_the_true_stream_of_any_index_is_silent(moves: list[tuple[str, int, int, int]]) -> None:
    """Blocks go under prefixes and leave, several under one hash; hash n is that of the first n blocks of one text."""
    listener, index, deepest = Residency(), Counter[tuple[int, object]](), 0
    for move, block, group, count in moves:
        match move:
            case "store":
                start = min(block, deepest + 1)
                hashes = range(start, start + count + 1)
                event: Event = stored(*hashes, parent=start - 1 or None, group=group)
                index.update((group, digest) for digest in hashes)
                deepest = max(deepest, start + count)
            case "take":
                if not index[group, block]:
                    continue
                index[group, block] -= 1
                event = Removed(group, (block,))
            case _:
                event, deepest = Cleared(), 0
                index.clear()
        assert listener.consume([event]) == []
    assert listener.compare(index) == []
