"""Faults planted in the real vLLM, one at a time: random programs show what each breaks, and without it they do not."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any

import pytest

from kvproof.audit.engines import Harness
from kvproof.audit.fuzz import serve
from kvproof.audit.targets.vllm_build import scheduler
from kvproof.audit.targets.vllm_target import VllmTarget
from kvproof.audit.workload import random_program
from kvproof.spec.records import Config

pytestmark = pytest.mark.vllm

PROGRAMS = 24

Plant = Callable[[Any], None]


def keys_outlive_their_block(engine: Any) -> None:
    engine.kv_cache_manager.block_pool._maybe_evict_cached_block = lambda block: False


def the_index_keeps_what_a_block_lost(engine: Any) -> None:
    pool = engine.kv_cache_manager.block_pool
    remove = pool._remove_cached_block_hashes

    def forgets(block: Any) -> Any:
        index, pool.cached_block_hash_to_block = pool.cached_block_hash_to_block, _Deaf()
        try:
            return remove(block)
        finally:
            pool.cached_block_hash_to_block = index

    pool._remove_cached_block_hashes = forgets


class _Deaf:
    """A map that removes nothing."""

    def pop(self, key: object, block_id: int) -> bool:
        return True


def copies_get_lost(engine: Any) -> None:
    schedule, turn = engine.schedule, count()

    def loses() -> Any:
        output = schedule()
        if output.kv_cache_block_copies and next(turn) % 2:
            output.kv_cache_block_copies = output.kv_cache_block_copies[:-1]
        return output

    engine.schedule = loses


def a_hit_is_not_counted(engine: Any) -> None:
    pool = engine.kv_cache_manager.block_pool
    touch = pool.touch

    def miscounts(blocks: Any) -> None:
        touch(blocks)
        for block in blocks[-1:]:
            block.ref_cnt -= not block.is_null and block.ref_cnt > 1

    pool.touch = miscounts


def one_free_is_forgotten(engine: Any) -> None:
    pool = engine.kv_cache_manager.block_pool
    free, turn = pool.free_blocks, count()
    pool.free_blocks = lambda blocks: free(list(blocks)[next(turn) % 5 == 0 :])


def nothing_waits_for_a_fence(engine: Any) -> None:
    engine.defer_block_free = False


def events_get_lost(engine: Any) -> None:
    manager = engine.kv_cache_manager
    take, turn = manager.take_events, count()
    manager.take_events = lambda: [event for event in take() if next(turn) % 4]


def the_worker_is_told_another_block(engine: Any) -> None:
    schedule = engine.schedule

    def misdirects() -> Any:
        output = schedule()
        for new in output.scheduled_new_reqs:
            for ids in new.block_ids:
                ids[-1] = max(ids[-1] - 1, 1)
        return output

    engine.schedule = misdirects


BREAKS: dict[Plant, set[str]] = {
    keys_outlive_their_block: {"key-true"},
    the_index_keeps_what_a_block_lost: {"index-agrees", "hit-answers", "state-ready"},
    copies_get_lost: {"copy-delivered", "state-ready"},
    a_hit_is_not_counted: {"refs-are-holders", "read-lineage"},
    one_free_is_forgotten: {"refs-are-holders", "free-queue"},
    nothing_waits_for_a_fence: {"used-stays-held"},
    events_get_lost: {"event-residency"},
    the_worker_is_told_another_block: {"table-agreement", "read-lineage"},
}


@pytest.mark.parametrize(("plant", "broken"), BREAKS.items(), ids=[plant.__name__ for plant in BREAKS])
def test_what_is_planted_is_found(plant: Plant, broken: set[str]) -> None:
    assert broken <= {check for check, _ in found(plant) - found(None)}


@cache
def found(plant: Plant | None) -> frozenset[tuple[str, str]]:
    """What the programs show, as (check, signature)."""

    def build(config: Config) -> Any:
        engine = scheduler(config)
        if plant is not None:
            plant(engine)
        return engine

    harness = Harness.of("vllm", VllmTarget(build=build))
    programs = [random_program(random.Random(f"planted:{index}")) for index in range(PROGRAMS)]
    runs = [run for run in (serve(harness, program) for program in programs) if not isinstance(run, str)]
    assert len(runs) > PROGRAMS / 2
    return frozenset(identity for _, outcome in runs for identity in outcome.findings)
