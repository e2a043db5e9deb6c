"""The pool: order of reuse, reference counts, names, moves, and the events that go with them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvproof.reference.events import EventLog
from kvproof.reference.journal import Journal
from kvproof.reference.pool import Pool, PoolError
from kvproof.spec.lineage import Forest, Path
from kvproof.spec.records import Cleared, Removed, Stored

UNIT = 2


def pool_of(num_blocks: int) -> Pool:
    return Pool(num_blocks, 2, UNIT, EventLog(), Journal())


def path_of(*tokens: int) -> Path:
    return Path(Forest().root(), tokens)


def test_blocks_come_in_order_and_the_null_block_never() -> None:
    pool = pool_of(4)
    assert pool.free_list() == [1, 2, 3]
    assert [pool.take() for _ in range(3)] == [1, 2, 3]
    assert pool.free == 0
    with pytest.raises(PoolError, match="empty"):
        pool.take()


def test_blocks_without_names_are_reused_first() -> None:
    pool, path = pool_of(6), path_of(1, 2, 3, 4)
    a, b, c, d = (pool.take() for _ in range(4))
    pool.publish(a, 0, path, 2, 0)
    pool.publish(b, 0, path, 4, 2)
    pool.drop_all([a, c, b, d])
    assert pool.free_list() == [d, c, 5, a, b]


def test_a_hit_leaves_the_free_list_and_comes_back_at_its_end() -> None:
    pool, path = pool_of(4), path_of(1, 2, 3, 4)
    a, b = pool.take(), pool.take()
    pool.publish(a, 0, path, 2, 0)
    pool.publish(b, 0, path, 4, 2)
    pool.drop_all([a, b])
    pool.hold(a)
    pool.hold(a)
    assert pool.free_list() == [3, b]
    pool.drop(a)
    assert pool.free_list() == [3, b]
    pool.drop(a)
    assert pool.free_list() == [3, b, a]


def test_a_block_is_not_dropped_twice() -> None:
    pool = pool_of(3)
    block = pool.take()
    pool.drop(block)
    with pytest.raises(PoolError, match="dropped it twice"):
        pool.drop(block)


def test_a_reused_block_is_found_no_more() -> None:
    pool, path = pool_of(2), path_of(1, 2)
    pool.publish(pool.take(), 0, path, 2, 0)
    pool.drop(1)
    assert list(pool.find(0, path[2])) == [1]
    assert not pool.find(1, path[2])
    pool.take()
    assert not pool.find(0, path[2])
    assert [type(event) for event in pool.events.drain()] == [Stored, Removed]


def test_duplicates_go_one_by_one() -> None:
    pool, path = pool_of(3), path_of(1, 2)
    for block in (pool.take(), pool.take()):
        pool.publish(block, 0, path, 2, 0)
    assert list(pool.find(0, path[2])) == [1, 2]
    pool.unpublish(1)
    assert list(pool.find(0, path[2])) == [2]


def test_a_promotion_retires_the_shorter_name() -> None:
    pool, path = pool_of(2), path_of(1, 2, 3, 4)
    block = pool.take()
    pool.publish(block, 0, path, 2, 0)
    pool.promote(block, 0, path, 4, 0)
    assert pool.keys[block] == (path[4],)
    assert not pool.find(0, path[2])


def test_names_move_in_silence() -> None:
    pool, path = pool_of(3), path_of(1, 2)
    source, target = pool.take(), pool.take()
    pool.publish(source, 1, path, 2, 0)
    pool.events.drain()
    pool.move_keys(source, target)
    assert (pool.keys[source], pool.keys[target]) == ((), (path[2],))
    assert list(pool.find(1, path[2])) == [target]
    assert pool.events.drain() == []


def test_neighbours_share_an_event() -> None:
    pool, path = pool_of(5), path_of(1, 2, 3, 4, 5, 6)
    for length in (2, 4, 6):
        pool.publish(pool.take(), 0, path, length, length - 2)
    assert pool.events.drain() == [Stored(0, (path[2], path[4], path[6]), None, (1, 2, 3, 4, 5, 6), 2)]


def test_a_sparse_entry_names_its_nearest_resident_ancestor() -> None:
    pool, path = pool_of(5), path_of(1, 2, 3, 4, 5, 6, 7, 8)
    pool.publish(pool.take(), 1, path, 2, 0)
    pool.publish(pool.take(), 1, path, 8, 6)
    pool.unpublish(1)
    pool.publish(pool.take(), 1, path, 6, 4)
    assert pool.events.drain() == [
        Stored(1, (path[2],), None, (1, 2), 2),
        Stored(1, (path[8],), path[2], (3, 4, 5, 6, 7, 8), 6),
        Removed(1, (path[2],)),
        Stored(1, (path[6],), None, (1, 2, 3, 4, 5, 6), 6),
    ]


def test_clear_forgets_all() -> None:
    pool, path = pool_of(3), path_of(1, 2)
    pool.publish(pool.take(), 0, path, 2, 0)
    pool.clear()
    assert pool.keys == [()] * 3
    assert pool.index == [{}, {}]
    assert isinstance(pool.events.drain()[-1], Cleared)


class PoolMachine(RuleBasedStateMachine):
    """A pool beside a model of it: a list for the free queue, counters for references, sets for names."""

    @initialize(size=st.integers(2, 9))
    def begin(self, size: int) -> None:
        self.pool = pool_of(size)
        self.path = path_of(*range(16))
        self.queue = list(range(1, size))
        self.refs: Counter[int] = Counter()
        self.named: dict[int, set[int]] = {block: set() for block in range(size)}

    @precondition(lambda self: self.queue)
    @rule()
    def take(self) -> None:
        block = self.queue.pop(0)
        self.named[block] = set()
        self.refs[block] += 1
        assert self.pool.take() == block

    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        block = data.draw(st.integers(1, len(self.named) - 1))
        if not self.refs[block]:
            self.queue.remove(block)
        self.refs[block] += 1
        self.pool.hold(block)

    @precondition(lambda self: any(self.refs.values()))
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from([block for block, count in self.refs.items() if count]))
        self.refs[block] -= 1
        if not self.refs[block]:
            self.queue.insert(len(self.queue) if self.named[block] else 0, block)
        self.pool.drop(block)

    @precondition(lambda self: any(self.refs.values()))
    @rule(data=st.data(), length=st.integers(1, 8).map(lambda n: n * UNIT))
    def publish(self, data: st.DataObject, length: int) -> None:
        block = data.draw(st.sampled_from([block for block, count in self.refs.items() if count]))
        if length not in self.named[block]:
            self.named[block].add(length)
            self.pool.publish(block, 0, self.path, length, length - UNIT)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool = self.pool
        assert pool.free_list() == self.queue
        assert pool.free == len(self.queue)
        assert pool.refs == [self.refs[block] for block in range(len(pool.refs))]
        for length in range(UNIT, 17, UNIT):
            expected = {block for block, lengths in self.named.items() if length in lengths}
            assert set(pool.find(0, self.path[length])) == expected


TestPoolMachine = PoolMachine.TestCase
