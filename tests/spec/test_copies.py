"""Copy batches: two meanings, read-through, and plans that keep the meaning in any interleaving of chains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain as flatten
from itertools import combinations, permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.spec.copies import HELD, ZERO, Move, apply, plan, resolve, run, same_meaning, validate
from kvproof.spec.errors import CopyError
from kvproof.spec.records import Copy, Meaning

BLOCKS = 9
CONTENTS = {block: f"old {block}" for block in range(1, BLOCKS)}
IDS = st.integers(1, BLOCKS - 1)
MEANINGS = st.sampled_from(Meaning)


@st.composite
def batches(draw: st.DrawFn) -> list[Copy]:
    dsts = draw(st.lists(IDS, unique=True, max_size=BLOCKS - 1))
    return [Copy(draw(st.sampled_from([src for src in CONTENTS if src != dst])), dst) for dst in dsts]


ZEROES = st.lists(IDS, unique=True, max_size=3)


def zeroed(zeroes: Sequence[int]) -> dict[int, str]:
    return {**CONTENTS, **dict.fromkeys(zeroes, "zero")}


def assign(moves: Mapping[int, int]) -> dict[int, str]:
    """The parallel assignment, on the contents from before the step."""
    return {**CONTENTS, **{dst: "zero" if src == ZERO else CONTENTS[src] for dst, src in moves.items()}}


def small_batches() -> Iterator[list[Copy]]:
    """All batches of up to three copies over four blocks."""
    edges = [Copy(src, dst) for src, dst in product(range(1, 5), repeat=2) if src != dst]
    for size in range(4):
        for batch in permutations(edges, size):
            if len({copy.dst for copy in batch}) == size:
                yield list(batch)


def check_plan(moves: Mapping[int, int]) -> None:
    chains = plan(moves)
    flat = list(flatten.from_iterable(chains))
    # every block is written once, and the only other moves hold a tile aside, at most one per chain
    assert sorted(move.dst for move in flat if move.dst != HELD) == sorted(moves)
    for chain in chains:
        aside = [move for move in chain if HELD in move]
        assert len(aside) in (0, 2)
        assert chain
    # chains are independent: what one writes no other reads or writes
    footprints = [({m.dst for m in c}, {m.src for m in c} | {m.dst for m in c}) for c in chains]
    for one, other in permutations(range(len(chains)), 2):
        assert footprints[one][0].isdisjoint(footprints[other][1] - {HELD})
    # no read of a block that the chain has written
    for chain in chains:
        for at, move in enumerate(chain):
            assert move.src == HELD or move.src not in {earlier.dst for earlier in chain[:at]}
    assert run(CONTENTS, chains, "zero") == assign(moves)
    assert run(CONTENTS, reversed(chains), "zero") == assign(moves)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(batches(), ZEROES, MEANINGS)
def test_resolve_and_plan_keep_the_declared_meaning(batch: list[Copy], zeroes: list[int], meaning: Meaning) -> None:
    validate(batch, BLOCKS, zeroes)
    moves = resolve(batch, meaning, zeroes)
    assert assign(moves) == apply(zeroed(zeroes), batch, meaning)
    assert all(src != dst for dst, src in moves.items())
    check_plan(moves)


def test_exhaustive_over_four_blocks_and_three_copies() -> None:
    count = 0
    for batch in small_batches():
        validate(batch, 5)
        results = {}
        for meaning in Meaning:
            moves = resolve(batch, meaning)
            results[meaning] = apply(CONTENTS, batch, meaning)
            assert assign(moves) == results[meaning]
            check_plan(moves)
        assert same_meaning(batch) == (results[Meaning.SIMULTANEOUS] == results[Meaning.IN_ORDER])
        count += 1
    assert count == 769


@pytest.mark.parametrize("size", range(5))
def test_exhaustive_over_moves_of_four_blocks(size: int) -> None:
    """All parallel assignments of four blocks, zeroing included: trees, cycles, trees that hang on a cycle."""
    for dsts in combinations(range(1, 5), size):
        for srcs in product([ZERO, *range(1, 5)], repeat=size):
            moves = {dst: src for dst, src in zip(dsts, srcs, strict=True) if src != dst}
            check_plan(moves)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(batches().flatmap(lambda batch: st.tuples(st.just(batch), st.permutations(batch))))
def test_simultaneous_copies_have_no_order(pair: tuple[list[Copy], list[Copy]]) -> None:
    batch, shuffled = pair
    assert apply(CONTENTS, shuffled, Meaning.SIMULTANEOUS) == apply(CONTENTS, batch, Meaning.SIMULTANEOUS)
    assert resolve(shuffled, Meaning.SIMULTANEOUS) == resolve(batch, Meaning.SIMULTANEOUS)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(batches(), ZEROES)
def test_without_a_source_written_before_both_meanings_agree(batch: list[Copy], zeroes: list[int]) -> None:
    if all(copy.src not in {earlier.dst for earlier in batch[:at]} for at, copy in enumerate(batch)):
        assert same_meaning(batch)
    if same_meaning(batch):
        one, other = (apply(zeroed(zeroes), batch, meaning) for meaning in Meaning)
        assert one == other


def test_in_order_a_chain_of_copies_is_a_fan_out_without_hazards() -> None:
    batch = [Copy(i, i + 1) for i in range(1, 6)]
    assert resolve(batch, Meaning.IN_ORDER) == dict.fromkeys(range(2, 7), 1)
    assert plan(resolve(batch, Meaning.IN_ORDER)) == [[Move(1, dst)] for dst in range(2, 7)]
    shift = plan(resolve(batch, Meaning.SIMULTANEOUS))
    assert shift == [[Move(i, i + 1) for i in range(5, 0, -1)]], "readers before the writer"
    assert not same_meaning(batch)


def test_a_swap_keeps_one_block_aside() -> None:
    swap = [Copy(1, 2), Copy(2, 1)]
    assert plan(resolve(swap, Meaning.SIMULTANEOUS)) == [[Move(2, HELD), Move(1, 2), Move(HELD, 1)]]
    assert resolve(swap, Meaning.IN_ORDER) == {2: 1}


def test_zero_then_copy_is_the_copy_and_a_zeroed_source_is_zero() -> None:
    assert resolve([Copy(1, 2)], Meaning.SIMULTANEOUS, [2]) == {2: 1}
    assert resolve([Copy(1, 2)], Meaning.SIMULTANEOUS, [1]) == {1: ZERO, 2: ZERO}


@pytest.mark.parametrize(
    ("copies", "zeroes", "message"),
    [
        ([Copy(0, 1)], [], "copy 0 -> 1 touches the null block 0"),
        ([Copy(1, 0)], [], "copy 1 -> 0 touches the null block 0"),
        ([Copy(1, 9)], [], "copy 1 -> 9 leaves the pool: block ids run from 1 to 8"),
        ([Copy(-1, 2)], [], "copy -1 -> 2 leaves the pool"),
        ([Copy(3, 3)], [], "copy 3 -> 3 goes nowhere: leave it out"),
        ([Copy(1, 3), Copy(2, 3)], [], "block 3 is the destination of two copies: give each copy"),
        ([], [0], "zeroing of 0 touches the null block"),
        ([Copy(1, 2)], [9], "zeroing of 9 leaves the pool"),
    ],
)
def test_a_batch_without_a_meaning_is_refused(copies: list[Copy], zeroes: list[int], message: str) -> None:
    with pytest.raises(CopyError, match=message):
        validate(copies, BLOCKS, zeroes)
