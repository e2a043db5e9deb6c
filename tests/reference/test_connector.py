"""Outside loads, failed loads, saves, rejected drafts and early ends, on random workloads."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.test_engine import Driver, consistent, random_config

from kvproof.reference.engine import Engine
from kvproof.reference.journal import Entry
from kvproof.spec.device import next_token
from kvproof.spec.errors import GeometryError, KvproofError
from kvproof.spec.geometry import Geometry
from kvproof.spec.lineage import Forest
from kvproof.spec.records import Config, Extras, Load, Request, Step

FEATURES = (
    "begin_load",
    "loaded",
    "load failed",
    "load of the dead",
    "load void",
    "ordered load",
    "spoil",
    "hand_over",
    "end_save",
    "accepted drafts",
    "rejected drafts",
    "early end",
    "end in flight",
)


class Outside(Driver):
    """A driver with a connector that loads and saves, and a drafter."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.running: dict[str, Load] = {}
        self.fails: set[tuple[int, str]] = set()  # loads that are part of a step and failed
        self.drafting = not self.config.geometry.states and self.config.depth == 1

    def submit(self, request: Request) -> None:
        beside = self.config.fences or self.config.depth == 1
        extras = Extras(
            outside=self.random.choice((0, self.random.randint(1, len(request.prompt)))),
            ordered=not beside or self.random.random() < 0.5,
            save=self.random.random() < 0.3,
            drafts=self.random.choice((0, 2)) if self.drafting else 0,
        )
        self.engine.add(request, extras, eos=self.random.choice((None, self.word(request))))

    def word(self, request: Request) -> int:
        """One of the first things that it will say."""
        text = Forest().root().extended(request.prompt)
        for _ in range(self.random.randrange(3)):
            text = text.then(next_token(text))
        return next_token(text)

    def schedule(self) -> None:
        super().schedule()
        if self.in_flight:
            self.fails |= {(self.in_flight[-1].number, load.request) for load in self.in_flight[-1].loads if self.chance(0.3)}
        for load in self.engine.loads():
            assert not load.ordered
            self.running[load.request] = load

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def failing(self, step: Step) -> list[str]:
        failed = [load for load in step.loads if (step.number, load.request) in self.fails]
        for load in failed:
            self.device.spoil(step.number, load.request)
        self.counts["ordered load"] += len(step.loads) - len(failed)
        return [load.request for load in failed]

    def between(self) -> None:
        for request in [name for name in self.running if self.chance(0.2)]:
            self.end_load(request)
        for job in self.engine.saves():
            if self.chance(0.2):
                self.engine.end_save(job)
                self.listen(None)

    def end_load(self, request: str) -> None:
        load, failed = self.running.pop(request), self.chance(0.3)
        transfer = self.engine.scheduler.connector.loading[request]
        outcome = "load void" if transfer.void else "load failed" if failed else "loaded"
        self.counts["load of the dead" if request not in self.alive else outcome] += 1
        if request in self.alive and not failed:
            for block, content in self.device.loaded(load):
                assert self.device.outside_write([block], content) == []
        else:
            assert self.device.outside_write(block for blocks in load.blocks for block in blocks) == []
        self.engine.end_load(request, not failed)
        self.listen(None)

    def finished(self, name: str) -> None:
        request, said = self.requests[name], self.said[name]
        most = min(request.max_tokens, self.config.max_model_len - len(request.prompt))
        assert 0 < len(said) <= most
        self.counts["early end"] += len(said) < most
        self.counts["end in flight"] += any(name == row.request for step in self.in_flight for row in step.rows)

    def listen(self, step: Step | None) -> None:
        super().listen(step)
        for row in step.rows if step else ():
            self.counts["drafted"] += row.drafts

    def count(self, entry: Entry, step: Step | None, seen: set[int]) -> None:
        super().count(entry, step, seen)
        self.counts[entry.kind] += 1

    def complete(self) -> None:
        step = self.in_flight[0] if self.in_flight else None
        before = {name: len(said) for name, said in self.said.items()}
        super().complete()
        for row in step.rows if step else ():
            gained = len(self.said[row.request]) - before[row.request]
            if row.drafts and gained:
                self.counts["accepted drafts"] += gained > 1
                self.counts["rejected drafts"] += gained <= row.drafts

    def idle_ids(self, names: list[str]) -> list[str]:
        return [name for name in super().idle_ids(names) if name not in self.running]

    def drain(self) -> None:
        for _ in range(10_000):
            if not (self.running or self.engine.busy() or self.engine.saves() or self.in_flight):
                break
            self.turn()
            if not self.in_flight:
                continue
            self.complete()
        consistent(self.engine)
        super().drain()


def drive_outside(seed: int, shape: str) -> Outside:
    random = Random(seed)
    driver = Outside(random_config(random, shape), random)
    driver.run(60)
    return driver


@pytest.mark.parametrize("shape", ["16/16", "8/8,16", "8", "checkpoint"])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_random_workloads_end_well(shape: str, seed: int) -> None:
    drive_outside(seed, shape)


def test_every_feature_happens() -> None:
    counts: Counter[str] = Counter()
    for seed in range(40):
        for shape in ("4/16", "8/8,16", "8"):
            counts += drive_outside(seed, shape).counts
    assert {feature for feature in FEATURES if not counts[feature]} == set()


def test_what_does_not_fit_the_configuration_is_refused() -> None:
    request = Request("a", tuple(range(8)), 4)
    config = Config(Geometry.of(4, (4,)), max_model_len=32, depth=2)
    with pytest.raises(GeometryError, match="drafts need"):
        Engine(config).add(request, Extras(drafts=1))
    with pytest.raises(GeometryError, match="needs fences"):
        Engine(config).add(request, Extras(outside=4))
    engine = Engine(replace(config, fences=True))
    engine.add(request, Extras(outside=4))
    with pytest.raises(KvproofError, match="no load runs"):
        engine.end_load("a", True)
    with pytest.raises(KvproofError, match="no job 1"):
        engine.end_save(1)


def test_a_loaded_prefix_is_found_by_others_only_when_it_is_there() -> None:
    engine = Engine(Config(Geometry.of(4, (4,), num_blocks=32), max_model_len=32))
    prompt = tuple(range(9))
    engine.add(Request("a", prompt, 1), Extras(outside=8))
    assert engine.schedule().rows == []
    [load] = engine.loads()
    assert (load.start, load.stop) == (0, 8)
    assert not any(engine.scheduler.pool.index)
    engine.end_load("a", True)
    step = engine.schedule()
    assert [(row.request, row.start, row.count) for row in step.rows] == [("a", 8, 1)]
    engine.complete(step, {"a": 1})
    engine.add(Request("b", prompt, 1))
    assert [row.start for row in engine.schedule().rows] == [8]


def test_a_failed_load_leaves_nothing_behind() -> None:
    engine = Engine(Config(Geometry.of(4, (4,), num_blocks=32), max_model_len=32))
    engine.add(Request("a", tuple(range(9)), 1), Extras(outside=8, ordered=True))
    step = engine.schedule()
    assert [row.start for row in step.rows] == [8]
    assert engine.scheduler.pool.index[0]
    engine.complete(step, {"a": 1}, failed=["a"])
    assert engine.scheduler.pool.free == 31
    assert not any(engine.scheduler.pool.index)
    assert [row.start for row in engine.schedule().rows] == [0]
