"""Chunk ends: progress, budget, grid, tail, junction, checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.spec.chunks import checkpoint_position, chunk, grid, junction_stop, next_chunk, prefill_end, tail
from kvproof.spec.geometry import Geometry, Group, Kind
from kvproof.spec.records import Config


@dataclass(frozen=True)
class Case:
    unit: int
    block: int
    widest: int
    prompt: int
    length: int
    hit: int
    junction: int
    exact: bool
    checkpoint: bool

    def stop(self) -> int:
        return junction_stop(self.junction, self.prompt, self.block, self.exact)

    def chunk(self, start: int, wanted: int) -> int:
        return chunk(
            start,
            wanted,
            self.prompt,
            self.length,
            block=self.block,
            unit=self.unit,
            widest=self.widest,
            junction=self.stop(),
            checkpoint=self.checkpoint,
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    unit = draw(st.integers(1, 4))
    block = unit * draw(st.integers(1, 5))
    prompt = draw(st.integers(1, 70))
    length = prompt + draw(st.sampled_from([0, 0, 1, 2, 7, 30]))
    hit = draw(st.integers(0, (length - 1) // unit)) * unit
    junction = draw(st.one_of(st.just(0), st.integers(0, (length - 1) // unit).map(lambda n: n * unit)))
    return Case(
        unit=unit,
        block=block,
        widest=draw(st.integers(1, 40)),
        prompt=prompt,
        length=length,
        hit=hit,
        junction=junction if junction > hit else 0,
        exact=draw(st.booleans()),
        checkpoint=draw(st.booleans()),
    )


def run(case: Case, budgets: list[int]) -> list[int]:
    """All chunk ends of a request under the given budgets, and the widest budget once these are used up."""
    ends, at, steps = [], case.hit, iter(budgets)
    while at < case.length:
        budget = min(next(steps, case.widest), case.widest)
        wanted = min(budget, case.length - at)
        got = case.chunk(at, wanted)
        assert 0 <= got <= wanted, "within the budget"
        assert got > 0 or wanted < min(case.widest, case.length - at), "the widest budget always gets on"
        assert got > 0 or wanted < case.block, "a block's worth of budget always gets on"
        if got:
            at += got
            ends.append(at)
    return ends


@settings(derandomize=True, deadline=None, max_examples=300)
@given(cases(), st.lists(st.integers(0, 40), max_size=12))
def test_chunks_cover_the_text_and_end_where_they_may(case: Case, budgets: list[int]) -> None:
    ends = run(case, budgets)
    assert ends[-1] == case.length
    end_of_prefill = prefill_end(case.prompt, case.length)
    off_grid = [end for end in ends if end < end_of_prefill and end % case.block]
    if case.block <= case.widest:
        assert set(off_grid) <= {tail(case.prompt, case.unit), case.stop()}
        blocks = [end // case.block for end in off_grid]
        shared = case.stop() // case.block == tail(case.prompt, case.unit) // case.block
        assert len(set(blocks)) == len(blocks) or (case.exact and case.junction and shared and len(blocks) == 2)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(cases(), st.lists(st.integers(0, 40), max_size=12))
def test_no_chunk_runs_past_a_stop(case: Case, budgets: list[int]) -> None:
    ends = run(case, budgets)
    end_of_prefill = prefill_end(case.prompt, case.length)
    last = (case.length - 1) // case.block * case.block
    for start, stop in zip([case.hit, *ends], ends, strict=False):
        if start >= end_of_prefill:
            continue
        inside = range(start + 1, stop)
        assert case.stop() not in inside
        exported = case.checkpoint and checkpoint_position(
            start, stop, case.prompt, case.length, block=case.block, unit=case.unit
        )
        if exported:
            assert exported in inside
            assert stop >= end_of_prefill
            continue
        assert last not in inside
        if tail(case.prompt, case.unit) > last:
            assert tail(case.prompt, case.unit) not in inside
        if start % case.block:
            assert not [end for end in inside if end % case.block == 0], "realigned"


@settings(derandomize=True, deadline=None, max_examples=100)
@given(cases())
def test_wide_blocks_advance_inside_and_realign(case: Case) -> None:
    if case.block <= case.widest:
        return
    ends = run(case, [])
    boundaries = [end for end in range(case.hit + 1, prefill_end(case.prompt, case.length)) if end % case.block == 0]
    if not case.checkpoint:
        assert set(boundaries) <= set(ends), "a step crosses at most one boundary, and stops there"


@settings(derandomize=True, deadline=None, max_examples=100)
@given(cases(), st.integers(0, 99))
def test_decoding_takes_what_it_wants(case: Case, wanted: int) -> None:
    assert case.chunk(prefill_end(case.prompt, case.length), wanted) == wanted


@settings(derandomize=True, deadline=None, max_examples=100)
@given(cases(), st.lists(st.integers(0, 40), max_size=12), st.integers(1, 4))
def test_a_grid_of_many_groups_serves_each_of_them(case: Case, budgets: list[int], divisor: int) -> None:
    """Where the grid is a multiple of a smaller block, an end off that smaller grid is off the grid, too."""
    if case.block % divisor or case.block > case.widest:
        return
    ends = run(case, budgets)
    end_of_prefill = prefill_end(case.prompt, case.length)
    small = [end for end in ends if end < end_of_prefill and end % divisor]
    assert set(small) <= {tail(case.prompt, case.unit), case.stop()}


def chunks(prompt: int, budget: int, start: int = 0, junction: int = 0, checkpoint: bool = False) -> list[int]:
    """The chunks of a fresh prompt, one per step of the same budget."""
    out = []
    while start < prompt:
        wanted = min(budget, prompt - start)
        sizes = Case(32, 512, budget, prompt, prompt, start, junction, exact=True, checkpoint=checkpoint)
        out.append(sizes.chunk(start, wanted))
        start += out[-1]
    return out


@pytest.mark.parametrize(
    ("prompt", "budget", "start", "junction", "expected"),
    [
        (10_000, 8192, 0, 0, [8192, 1536, 256, 16]),  # grid, last block, tail, end
        (10_000, 8192, 9984, 0, [16]),  # a resend hits the tail
        (10_240, 16_384, 0, 0, [9728, 480, 32]),  # the prompt fills a block: it still keeps its tail
        (2000, 8192, 544, 0, [480, 512, 448, 16]),  # mid-block start: to the next boundary, last block, tail, end
        (10_000, 8192, 0, 4096, [4096, 5632, 256, 16]),  # a junction on the grid
        (10_000, 8192, 0, 4128, [4128, 480, 5120, 256, 16]),  # a junction inside a block, then back to the grid
        (10_000, 8192, 0, 9760, [8192, 1536, 32, 224, 16]),  # junction and tail share a block
        (1000, 300, 0, 0, [300, 212, 300, 180, 8]),  # a block wider than any step
        (31, 8192, 0, 0, [31]),  # less than a unit: nothing to keep
        (33, 8192, 0, 0, [32, 1]),
    ],
)
def test_the_example(prompt: int, budget: int, start: int, junction: int, expected: list[int]) -> None:
    assert chunks(prompt, budget, start, junction) == expected


def test_with_a_checkpoint_the_last_chunk_is_one() -> None:
    assert chunks(10_000, 16_384, checkpoint=True) == [10_000]
    assert checkpoint_position(0, 10_000, 10_000, 10_000, block=512, unit=32) == 9984
    assert chunks(10_000, 8192, checkpoint=True) == [8192, 1808]
    # two slots are too few: the exported state would have no slot of its own
    assert chunks(1000, 16_384, start=512, checkpoint=True) == [480, 8]
    assert chunks(1030, 16_384, start=544, checkpoint=True) == [480, 6]
    # a junction on the way ends the chunk, and a chunk that ends there exports nothing
    assert chunks(10_000, 16_384, junction=4096, checkpoint=True) == [4096, 5904]
    # off the unit grid nothing is exported
    assert checkpoint_position(33, 10_000, 10_000, 10_000, block=512, unit=32) == 0


def test_a_short_budget_waits_where_a_whole_block_would_fit() -> None:
    assert chunk(0, 100, 10_000, 10_000, block=512, unit=32, widest=8192) == 0
    assert chunk(544, 400, 10_000, 10_000, block=512, unit=32, widest=8192) == 0
    assert chunk(544, 480, 10_000, 10_000, block=512, unit=32, widest=8192) == 480


def test_a_resumed_request_replays_its_output_like_a_prompt() -> None:
    resumed = partial(chunk, block=64, unit=16, widest=1000)
    assert resumed(0, 301, 100, 301) == 256  # the last block of what it replays; the prompt's tail is behind
    assert resumed(128, 100, 100, 301) == 64  # behind the prompt, still on the grid
    assert resumed(256, 45, 100, 301) == 45
    assert resumed(64, 38, 100, 102) == 32  # it has not outgrown the block of its tail
    assert resumed(300, 1, 100, 301) == 1


@pytest.mark.parametrize(
    ("junction", "exact", "expected"), [(0, True, 0), (40, True, 40), (40, False, 32), (104, True, 96), (96, False, 96)]
)
def test_junction_stop(junction: int, exact: bool, expected: int) -> None:
    assert junction_stop(junction, prompt=100, block=32, exact=exact) == expected


@pytest.mark.parametrize(
    ("geometry", "expected"),
    [
        (Geometry.of(528, (528,), unit=16), 528),
        (Geometry.of(128, (512,), unit=16), 512),
        (Geometry.of(2144, (1072,), unit=16), 1072),  # an append-only group needs no stops
        (Geometry.of(4, (4, 6), unit=2), 12),
        (Geometry.of(528, (528,)), 528),
        (Geometry.of(128, (64,)), 128),  # not fine: a hit at 64 is none of the append-only group
    ],
)
def test_the_grid_ends_a_block_of_every_state_group(geometry: Geometry, expected: int) -> None:
    assert grid(geometry) == expected
    assert all(expected % group.block_size == 0 for group in geometry.states)


def test_next_chunk_reads_the_configuration() -> None:
    seed = Config(Geometry.of(128, (512,), unit=16), max_batched_tokens=8192)
    assert next_chunk(seed, 0, 8192, 10_000, 10_000) == 8192
    assert next_chunk(seed, 9728, 272, 10_000, 10_000) == 256
    assert next_chunk(seed, 0, 8192, 10_000, 10_000, junction=4128) == 4096
    exact = Config(seed.geometry, max_batched_tokens=8192, junctions=True)
    assert next_chunk(exact, 0, 8192, 10_000, 10_000, junction=4128) == 4128
    coarse = Config(Geometry.of(128, (64,), unit=64), max_batched_tokens=8192, junctions=True)
    assert [next_chunk(coarse, 0, 1000, 1000, 1000), next_chunk(coarse, 896, 104, 1000, 1000)] == [896, 104]
    assert next_chunk(Config(Geometry.of(16)), 3, 7, 100, 100) == 7
    groups = (Group(0, Kind.APPEND_ONLY, 64), Group(1, Kind.STATE, 64, checkpoint=True))
    able = Config(Geometry(groups, 16, 8), max_batched_tokens=8192)
    assert next_chunk(able, 0, 1000, 1000, 1000) == 1000
    half = Config(Geometry((*groups, Group(2, Kind.STATE, 64)), 16, 8), max_batched_tokens=8192)
    assert next_chunk(half, 0, 1000, 1000, 1000) == 960, "one group cannot export"
    two = Config(Geometry.of(4, (4, 6), unit=2), max_batched_tokens=100)
    assert [next_chunk(two, 0, 53, 53, 53), next_chunk(two, 48, 5, 53, 53)] == [48, 4]
