"""What a batch of block copies means, and an order in which one launch may run it.

A step zeroes blocks, then copies, then runs the forward pass. A batch of copies is *simultaneous* (all reads, then all
writes) or *in order* (one after the other). Either way it comes down to *moves*: a parallel assignment to each written
block of the bytes that some block held before the step, or of ZERO.

In moves every read is of old bytes, so one hazard is left: a block that one move reads and another writes. A *chain* is
a list of moves that run one after the other. What one chain writes no other chain reads or writes, so chains may run at
the same time. Copies are byte-parallel: on a device one program walks a whole chain for one tile of bytes, and a cycle
of moves keeps one tile aside.

vLLM: copy_kv_cache_blocks_inplace in vllm/v1/worker/utils.py (gathers all sources, then scatters: simultaneous).
One block aside suffices for any cycle: Rideau, Serpette, Leroy, "Tilting at windmills with Coq", 2008.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from kvproof.spec.errors import CopyError
from kvproof.spec.geometry import NULL_BLOCK
from kvproof.spec.records import Copy, Meaning

T = TypeVar("T")

ZERO = -1  # as a source: zero bytes
HELD = -2  # as source or destination: what the chain keeps aside, one tile


class Move(NamedTuple):
    """One block's bytes to another. src may be ZERO or HELD, dst may be HELD."""

    src: int
    dst: int


Chain = list[Move]


def validate(copies: Iterable[Copy], num_blocks: int, zeroes: Iterable[int] = ()) -> None:
    """Raise CopyError unless the batch has a meaning in a pool of `num_blocks` blocks.

    No copy or zeroing touches the null block or leaves the pool, no block is copied to itself, and none has two
    writers.
    """
    written: set[int] = set()
    for copy in copies:
        for block in (copy.src, copy.dst):
            _check_block(block, num_blocks, f"copy {copy.src} -> {copy.dst}")
        if copy.src == copy.dst:
            raise CopyError(f"copy {copy.src} -> {copy.dst} goes nowhere: leave it out")
        if copy.dst in written:
            raise CopyError(f"block {copy.dst} is the destination of two copies: give each copy a block of its own")
        written.add(copy.dst)
    for block in zeroes:
        _check_block(block, num_blocks, f"zeroing of {block}")


def _check_block(block: int, num_blocks: int, what: str) -> None:
    if block == NULL_BLOCK:
        raise CopyError(f"{what} touches the null block {NULL_BLOCK}: it belongs to nobody and must be skipped")
    if not 0 < block < num_blocks:
        raise CopyError(f"{what} leaves the pool: block ids run from 1 to {num_blocks - 1}")


def apply(contents: Mapping[int, T], copies: Sequence[Copy], meaning: Meaning) -> dict[int, T]:
    """The contents of all blocks after the copies: the definition that everything else here is held to."""
    after = dict(contents)
    for copy in copies:
        after[copy.dst] = (contents if meaning is Meaning.SIMULTANEOUS else after)[copy.src]
    return after


def resolve(copies: Iterable[Copy], meaning: Meaning, zeroes: Iterable[int] = ()) -> dict[int, int]:
    """The moves of a step, as `moves[dst] = src`: zeroing first, each source read through to where its bytes came from.

    A move of a block to itself is dropped; a zeroed block that is then copied over is copied only.
    """
    zeroed = dict.fromkeys(zeroes, ZERO)
    moves = dict(zeroed)
    for copy in copies:
        moves[copy.dst] = (zeroed if meaning is Meaning.SIMULTANEOUS else moves).get(copy.src, copy.src)
    return {dst: src for dst, src in moves.items() if src != dst}


def same_meaning(copies: Sequence[Copy]) -> bool:
    """Whether the batch means the same simultaneously and in order, whatever the blocks hold."""
    return resolve(copies, Meaning.SIMULTANEOUS) == resolve(copies, Meaning.IN_ORDER)


def plan(moves: Mapping[int, int]) -> list[Chain]:
    """Chains that together carry out the moves, readers of a block before its writer. moves: from `resolve`.

    A block has one writer, so following sources leads to a block that no move writes, or around a cycle. What hangs on one
    such end is one chain. A cycle keeps one block aside, which takes one move more.
    """
    readers: dict[int, list[int]] = {}
    for dst, src in moves.items():
        readers.setdefault(src, []).append(dst)
    chains = [_chain(moves, readers, last) for last, src in moves.items() if src not in moves]
    done = {move.dst for chain in chains for move in chain}
    for dst in moves:
        if dst not in done:
            first, way = dst, set[int]()
            while first not in way:
                way.add(first)
                last, first = first, moves[first]
            chains.append([Move(first, HELD), *_chain(moves, readers, last)[:-1], Move(HELD, last)])
            done.update(move.dst for move in chains[-1])
    return chains


def _chain(moves: Mapping[int, int], readers: Mapping[int, list[int]], last: int) -> Chain:
    """The move to `last`, and before it all that read what it overwrites, and so on."""
    order = [last]
    for block in order:
        order += [dst for dst in readers.get(block, ()) if dst != last]
    return [Move(moves[dst], dst) for dst in reversed(order)]


def run(contents: Mapping[int, T], chains: Iterable[Chain], zero: T) -> dict[int, T]:
    """The contents after the chains, run move by move. Chains in any order give the same."""
    after = dict(contents)
    for chain in chains:
        aside = zero
        for src, dst in chain:
            value = zero if src == ZERO else aside if src == HELD else after[src]
            if dst == HELD:
                aside = value
            else:
                after[dst] = value
    return after
