"""The engine on random workloads, to the end: it agrees with itself, with the shadow device and with the rules' policies."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.audit.events import Residency
from kvproof.reference.engine import Engine, least_pool
from kvproof.reference.journal import Entry
from kvproof.reference.lookup import Hit
from kvproof.reference.sequence import Status
from kvproof.spec.chunks import next_chunk
from kvproof.spec.device import Device
from kvproof.spec.errors import GeometryError, KvproofError
from kvproof.spec.faults import Fault
from kvproof.spec.geometry import Geometry
from kvproof.spec.lineage import Forest, Path
from kvproof.spec.lookup import common_hit
from kvproof.spec.records import Config, Policy, Request, Step

SHAPES: dict[str, Geometry] = {
    "16/16": Geometry.of(16, (16,), unit=4),
    "4/16": Geometry.of(4, (16,), unit=2),
    "8/8,16": Geometry.of(8, (8, 16), unit=4),
    "4/12,8": Geometry.of(4, (12, 8), unit=2),
    "8": Geometry.of(8, unit=4),
    "8/8": Geometry.of(8, (8,), unit=8),
    "checkpoint": Geometry.of(8, (8, 8), unit=2, checkpoint=True),
}
FEATURES = (
    "hit",
    "consumer copy",
    "producer copy",
    "promotion",
    "junction",
    "preempted",
    "cancelled",
    "deferred",
    "evicted",
    "owed",
    "stale",
    "dropped sample",
    "aborted",
    "reset",
    "id again",
    "checkpoint",
    "same-step share",
    "put off",
)


def consistent(engine: Engine) -> None:
    """References are holders, the free list is the unheld blocks, index and reverse index agree. O(pool)."""
    scheduler = engine.scheduler
    pool = scheduler.pool
    holders: Counter[int] = Counter()
    loading = (transfer.sequence for transfer in scheduler.connector.loading.values())
    for sequence in {*scheduler.sequences.values(), *loading}:
        holders.update(sequence.blocks())
    for _, blocks in scheduler.fences.entries:
        holders.update(blocks)
    for save in scheduler.connector.saves.values():
        holders.update(save.blocks)
    assert [holders[block] for block in range(len(pool.refs))] == pool.refs
    free = pool.free_list()
    assert sorted(free) == [block for block in range(1, len(pool.refs)) if not holders[block]]
    assert len(free) == pool.free
    shown = {(g, name, block) for g, index in enumerate(pool.index) for name, found in index.items() for block in found}
    assert shown == {(pool.group[block], name, block) for block, names in enumerate(pool.keys) for name in names}
    assert not pool.keys[0]
    assert not pool.refs[0]


@dataclass
class Driver:
    """An engine, a shadow device beside it, and a client who knows what every request will say."""

    config: Config
    random: Random
    engine: Engine = field(init=False)
    counts: Counter[str] = field(default_factory=Counter)
    said: dict[str, list[int]] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    in_flight: deque[Step] = field(default_factory=deque)
    steps: int = 0

    def __post_init__(self) -> None:
        self.engine = Engine(self.config, journal=True)
        self.device = Device(self.config.geometry, Forest())
        self.residency = Residency()
        self.alive: set[str] = set()
        self.families = [[self.random.randrange(9) for _ in range(self.config.max_model_len)] for _ in range(2)]
        self.compare_policies()
        self.count_promotions()

    # ---------------------------------------------------------------------------------------------------- the client

    def add(self, name: str) -> None:
        longest = self.config.max_model_len - 8
        length = self.random.randint(1, longest)
        shared = self.random.choice((0, length, self.random.randint(0, length)))
        family = self.random.choice(self.families)
        prompt = (*family[:shared], *(self.random.randrange(50, 90) for _ in range(length - shared)))
        salt = self.random.choice((None, None, None, "red"))
        self.send(Request(name, prompt, self.random.randint(1, 8), self.random.randint(0, 2), salt))

    def send(self, request: Request) -> None:
        self.counts["id again"] += request.id in self.requests
        self.requests[request.id] = request
        self.said[request.id] = []
        self.alive.add(request.id)
        self.device.admit(request)
        self.submit(request)

    def submit(self, request: Request) -> None:
        self.engine.add(request)

    def abort(self, name: str) -> None:
        self.counts["aborted"] += any(self.engine.scheduler.sequences[name].tables)
        self.alive.discard(name)
        self.engine.abort(name)

    # ------------------------------------------------------------------------------------------------------- the steps

    def schedule(self) -> None:
        step = self.engine.schedule()
        self.judge(step, self.device.run(step))
        assert sum(row.count for row in step.rows) <= self.config.max_batched_tokens
        if step.rows or step.copies:
            self.in_flight.append(step)
            self.steps += 1
        else:
            self.device.complete(step.number)
        self.counts["checkpoint"] += len(step.checkpoints)
        self.counts["owed"] += any(sequence.owed for sequence in self.engine.scheduler.running)
        self.listen(step)

    def failing(self, step: Step) -> list[str]:
        """Requests whose load in this step turns out to have failed."""
        return []

    def judge(self, step: Step, faults: list[Fault]) -> None:
        """What the shadow device says of a step."""
        assert faults == []

    def complete(self) -> None:
        if not self.in_flight:
            return
        step = self.in_flight.popleft()
        tokens = self.device.sampled(step)
        waiting = {name for name, s in self.engine.scheduler.sequences.items() if s.status is Status.WAITING}
        finished, accepted = self.engine.complete(step, tokens, self.failing(step))
        self.device.complete(step.number)
        for name, new in accepted.items():
            self.said[name] += new
            self.counts["stale"] += name in waiting
        self.counts["dropped sample"] += sum(1 for name in tokens if name in waiting and name not in accepted)
        self.alive -= set(finished)
        for name in finished:
            self.finished(name)
        self.listen(None)

    def finished(self, name: str) -> None:
        """It said as much as it was asked to. What it said is right as every single sample is the device's."""
        request = self.requests[name]
        assert len(self.said[name]) == min(request.max_tokens, self.config.max_model_len - len(request.prompt))

    def listen(self, step: Step | None) -> None:
        assert self.residency.consume(self.engine.events()) == []
        indexes = enumerate(self.engine.scheduler.pool.index)
        assert self.residency.compare({(g, name): len(found) for g, index in indexes for name, found in index.items()}) == []
        seen: set[int] = set()
        for entry in self.engine.journal():
            self.count(entry, step, seen)

    def count(self, entry: Entry, step: Step | None, seen: set[int]) -> None:
        self.counts["hit"] += entry.hit > 0 and not entry.failed
        self.counts["deferred"] += entry.kind == "free" and bool(entry.deferred)
        self.counts["evicted"] += sum(1 for block, keys in entry.keys if block in entry.taken and not keys)
        self.counts["same-step share"] += not seen.isdisjoint(entry.hits)
        seen.update(entry.taken)
        written = {block for table in entry.tables.values() if table for column in table for block in column}
        for _, target in entry.copies:
            self.counts["consumer copy" if target in written else "producer copy"] += 1
        if entry.kind == "free" and step is not None:
            self.counts["preempted"] += 1
        if entry.kind == "allocate" and not entry.failed:
            assert entry.demand is None or len(entry.taken) <= entry.demand
        if entry.failed:
            assert (entry.taken, entry.hits, entry.copies, entry.keys, entry.refs) == ([], [], [], [], {})

    # ------------------------------------------------------------------------------------------------------ the rules

    def compare_policies(self) -> None:
        """Lookup and chunks of the engine against those of the specification, on each call."""
        scheduler, config = self.engine.scheduler, self.config
        find, stop, cancel = scheduler.lookup.find, scheduler.chunking.stop, scheduler.preemption.cancel

        def on_find(path: Path, ready: Callable[[int, int], bool]) -> Hit:
            found = find(path, ready)
            index = scheduler.pool.index
            ruled = common_hit(lambda key: index[key.group.index].get(key.lineage), path, config.geometry, len(path))
            assert (found.length, found.junction) == (ruled.length, ruled.junction)
            self.counts["junction"] += found.junction > 0
            self.counts["put off"] += not found.ready
            return found

        def on_stop(start: int, wanted: int, prompt: int, known: int, junction: int) -> tuple[int, int]:
            end, exported = stop(start, wanted, prompt, known, junction)
            assert end - start == next_chunk(config, start, wanted, prompt, known, junction)
            return end, exported

        def on_cancel(sequence: object, staging: object) -> None:
            self.counts["cancelled"] += sequence.id in staging.shares  # type: ignore[attr-defined]
            cancel(sequence, staging)  # type: ignore[arg-type]

        scheduler.lookup.find = on_find  # type: ignore[method-assign]
        scheduler.chunking.stop = on_stop  # type: ignore[method-assign]
        scheduler.preemption.cancel = on_cancel  # type: ignore[method-assign]

    def count_promotions(self) -> None:
        pool = self.engine.scheduler.pool
        promote = pool.promote

        def on_promote(block: int, group: int, path: Path, length: int, base: int) -> None:
            self.counts["promotion"] += bool(pool.keys[block])
            promote(block, group, path, length, base)

        pool.promote = on_promote  # type: ignore[method-assign]

    # ------------------------------------------------------------------------------------------------------ the whole

    def run(self, operations: int) -> None:
        names = [f"r{i}" for i in range(8)]
        for _ in range(operations):
            chance = self.random.random()
            idle = self.idle_ids(names)
            self.between()
            if chance < 0.3 and idle:
                for name in self.random.sample(idle, min(len(idle), self.random.choice((1, 1, 3)))):
                    self.add(name)
            elif chance < 0.36 and self.alive:
                self.abort(self.random.choice(sorted(self.alive)))
            elif chance < 0.38:
                self.counts["reset"] += 1
                self.engine.reset_cache()
                self.listen(None)
            elif chance < 0.5:
                self.complete()
            else:
                self.turn()
            consistent(self.engine)
        self.drain()

    def idle_ids(self, names: list[str]) -> list[str]:
        flying = {row.request for step in self.in_flight for row in step.rows}
        return [name for name in names if name not in self.alive and name not in flying]

    def between(self) -> None:
        """What the outside does before each operation."""

    def turn(self) -> None:
        self.between()
        while len(self.in_flight) >= self.config.depth:
            self.complete()
        self.schedule()

    def drain(self) -> None:
        idle = 0
        while self.engine.busy():
            before = self.steps
            self.turn()
            idle = 0 if self.steps > before or self.in_flight else idle + 1
            assert idle < 3, "requests wait and nothing happens"
            if self.steps == before:
                self.complete()
        self.turn()
        while self.in_flight:
            self.complete()
        consistent(self.engine)
        assert self.engine.scheduler.pool.free == self.config.geometry.num_blocks - 1
        assert not self.engine.scheduler.fences.entries
        assert not self.engine.scheduler.leftovers()
        assert self.device.requests == set()


def random_config(random: Random, shape: str) -> Config:
    block = SHAPES[shape].scheduler_block
    geometry = replace(SHAPES[shape], retention=random.choice((None, 0, 2 * block)))
    config = Config(
        replace(geometry, num_blocks=1_000_000),
        max_batched_tokens=block * random.choice((1, 2, 4)) + random.choice((0, 1, block // 2)),
        max_seqs=random.choice((2, 4, 8)),
        max_model_len=3 * block + 8,
        depth=random.choice((1, 2, 3)),
        fences=random.random() < 0.4,
        policy=random.choice(list(Policy)),
        junctions=random.random() < 0.5,
    )
    least = least_pool(config)
    spare = random.choice((0, 2, least // 2, 2 * least))
    return replace(config, geometry=replace(config.geometry, num_blocks=least + spare))


def drive(random: Random, shape: str, operations: int = 60) -> Driver:
    driver = Driver(random_config(random, shape), random)
    driver.run(operations)
    return driver


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_random_workloads_end_well(shape: str, seed: int) -> None:
    drive(Random(seed), shape)


def test_every_feature_happens() -> None:
    counts: Counter[str] = Counter()
    for seed in range(25):
        for shape in ("4/16", "8/8,16", "checkpoint", "8"):
            counts += drive(Random(f"{seed}/{shape}"), shape).counts
    assert {feature: counts[feature] for feature in FEATURES if not counts[feature]} == {}


def test_a_run_repeats() -> None:
    """The same operations give the same steps."""
    first, second = (drive(Random(3), "16/16") for _ in range(2))
    assert first.counts == second.counts
    assert first.said == second.said


def computed(engine: Engine, steps: int) -> list[list[tuple[str, int, int]]]:
    """(request, start, count) of each row, step by step. Everybody says 7."""
    rows = []
    for _ in range(steps):
        step = engine.schedule()
        rows.append([(row.request, row.start, row.count) for row in step.rows])
        engine.complete(step, {row.request: 7 for row in step.rows if row.samples})
    return rows


def test_both_copies_on_write() -> None:
    """A prompt that ends inside a block, and one that shares all of it but the end: what vLLM 0.26 to 0.33 do as well."""
    engine = Engine(Config(Geometry.of(16, (64,), unit=16, num_blocks=32), max_batched_tokens=128, max_model_len=128))
    base = tuple(range(1000, 1096))
    engine.add(Request("a", (*base, 7), 2))
    assert computed(engine, 2) == [[("a", 0, 64)], [("a", 64, 32)]]
    [snapshot] = engine.scheduler.pool.find(1, engine.scheduler.sequences["a"].path[96])
    step = engine.schedule()
    assert [(row.start, row.count) for row in step.rows] == [(96, 1)]
    [copy] = step.copies  # the running state is overwritten: its name moves to a copy
    assert copy.src == snapshot == engine.scheduler.sequences["a"].tables[1][1]
    assert list(engine.scheduler.pool.find(1, engine.scheduler.sequences["a"].path[96])) == [copy.dst]
    engine.complete(step, {"a": 7})
    engine.add(Request("b", (*base, 8, 9, 10), 2))
    step = engine.schedule()
    b = engine.scheduler.sequences["b"]
    assert ("b", 96, 3) in [(row.request, row.start, row.count) for row in step.rows]
    [private] = step.copies  # the hit ends inside the block of the state group only
    assert (private.src, private.dst) == (copy.dst, b.tables[1][1])
    assert b.tables[1][0] == 0
    assert b.tables[0][:6] == engine.scheduler.sequences["a"].tables[0][:6]


def test_a_state_of_the_same_step_is_put_off_and_rows_are_not() -> None:
    prompt = tuple(range(9))
    hybrid = Engine(Config(Geometry.of(8, (8,), num_blocks=32), max_model_len=16))
    attention = Engine(Config(Geometry.of(8, num_blocks=32), max_model_len=16))
    for engine in (hybrid, attention):
        engine.add(Request("a", prompt, 1))
        engine.add(Request("b", prompt, 1))
    assert computed(hybrid, 2) == [[("a", 0, 8)], [("a", 8, 1), ("b", 8, 1)]]
    assert computed(attention, 1) == [[("a", 0, 9), ("b", 8, 1)]]


def test_a_pool_that_is_too_small_is_refused() -> None:
    with pytest.raises(GeometryError, match="use at least 12"):
        Engine(Config(Geometry.of(8, (8,), num_blocks=11), max_model_len=56))


def test_an_id_in_use_and_an_empty_prompt_are_refused() -> None:
    engine = Engine(Config(Geometry.of(8, num_blocks=32), max_model_len=16))
    engine.add(Request("a", (1,), 1))
    with pytest.raises(GeometryError, match="in use"):
        engine.add(Request("a", (1,), 1))
    with pytest.raises(GeometryError, match="0 prompt tokens"):
        engine.add(Request("b", (), 1))


def test_steps_complete_in_their_order() -> None:
    engine = Engine(Config(Geometry.of(8, num_blocks=32), max_model_len=16, depth=2))
    engine.add(Request("a", (1, 2), 4))
    first, second = engine.schedule(), engine.schedule()
    with pytest.raises(KvproofError, match="2 steps are in flight"):
        engine.schedule()
    with pytest.raises(KvproofError, match="completes before step 1"):
        engine.complete(second, {"a": 1})
    assert engine.complete(first, {"a": 1}) == ([], {"a": [1]})
