"""Hits that random workloads meet too rarely: trimmed ones, gaps, duplicates, and blocks that are not ready."""

from __future__ import annotations

from kvproof.reference.events import EventLog
from kvproof.reference.journal import Journal
from kvproof.reference.lookup import Hit, Lookup
from kvproof.reference.pool import Pool
from kvproof.spec.geometry import Geometry
from kvproof.spec.lineage import Forest, Path


class Cache:
    """A pool whose blocks are named by hand. Group 0: append-only blocks of 4, group 1: states of 8, unit 2."""

    def __init__(self, length: int, states: tuple[int, ...] = (8,)) -> None:
        geometry = Geometry.of(4, states, unit=2)
        self.pool = Pool(64, len(geometry.groups), 2, EventLog(), Journal())
        self.lookup = Lookup(self.pool, geometry)
        self.path = Path(Forest().root(), range(length))

    def put(self, group: int, *lengths: int) -> list[int]:
        blocks = [self.pool.take() for _ in lengths]
        for block, length in zip(blocks, lengths, strict=True):
            self.pool.publish(block, group, self.path, length, length - 2)
        return blocks

    def find(self, ready: dict[int, int] | None = None) -> Hit:
        return self.lookup.find(self.path, lambda block, length: (ready or {}).get(block, length) >= length)


def test_nothing_is_found_in_an_empty_cache() -> None:
    hit = Cache(9).find()
    assert (hit.length, hit.junction, hit.tables, hit.ready) == (0, 0, [[], []], True)


def test_a_full_block_is_trimmed_to_the_state() -> None:
    cache = Cache(17)
    rows, [state] = cache.put(0, 4, 8, 12, 16), cache.put(1, 10)
    hit = cache.find()
    assert (hit.length, hit.junction) == (10, 16)
    assert hit.tables == [rows[:3], [0, state]]


def test_a_partial_block_extends_the_run() -> None:
    cache = Cache(17)
    rows, [state] = cache.put(0, 4, 6), cache.put(1, 6)
    hit = cache.find()
    assert (hit.length, hit.tables) == (6, [rows, [state]])


def test_the_last_token_is_never_hit() -> None:
    cache = Cache(8)
    rows = cache.put(0, 4, 8)
    cache.put(1, 6, 8)
    hit = cache.find()
    assert (hit.length, hit.tables[0]) == (6, rows)


def test_groups_agree_on_the_greatest_common_state() -> None:
    cache = Cache(30, (8, 4))
    cache.put(0, *range(4, 29, 4))
    first, second = cache.put(1, 8, 14, 24), cache.put(2, 8, 12, 14, 20)
    hit = cache.find()
    assert (hit.length, hit.junction) == (14, 28)
    assert hit.tables[1:] == [[0, first[1]], [0, 0, 0, second[2]]]


def test_a_ready_duplicate_is_taken() -> None:
    cache = Cache(9)
    cache.put(0, 4, 8)
    early, late = cache.put(1, 8), cache.put(1, 8)
    assert cache.find({early[0]: 0}).tables[1] == late
    assert cache.find({early[0]: 0}).ready
    assert not cache.find({early[0]: 0, late[0]: 0}).ready


def test_rows_of_the_same_step_are_shared_but_not_copied() -> None:
    cache = Cache(9)
    rows, _ = cache.put(0, 4, 8), cache.put(1, 6, 8)
    assert cache.find({rows[1]: 4}).ready
    cache.pool.unpublish(next(iter(cache.pool.find(1, cache.path[8]))))
    hit = cache.find({rows[1]: 4})
    assert (hit.length, hit.ready) == (6, False)


def test_where_hits_end_on_the_grid_only() -> None:
    cache = Cache(20)
    cache.lookup = Lookup(cache.pool, Geometry.of(4, (2,), unit=2))
    cache.put(0, 4, 8, 10)
    cache.put(1, 8, 10)
    assert cache.find().length == 8
