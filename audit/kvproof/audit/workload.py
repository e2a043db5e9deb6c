"""Workloads: what to send to an engine so that block boundaries, sharing, pressure and order all meet.

One generator, `build`, asks a `Chooser` for every choice. `programs` lets Hypothesis choose (it shrinks and explains),
`random_program` a seeded generator (a hundred times faster; what the fuzzer runs on). Lengths lie on, before and after
multiples of units and blocks; no other number is special.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Protocol, TypeVar

from hypothesis import strategies as st

from kvproof.audit.program import (
    Abort,
    Add,
    AnyOperation,
    Complete,
    Program,
    ResetCache,
    Run,
    Schedule,
    least_pool,
)
from kvproof.spec.geometry import Geometry
from kvproof.spec.records import Config, Policy

T = TypeVar("T")


class Yield(StrEnum):
    """Where a geometry comes from: what a finding needs to be met in production."""

    YIELDED = "yielded by vLLM"
    TWIN = "scaled-down twin"
    LEGAL = "legal, not yielded today"


@dataclass(frozen=True, slots=True)
class Shape:
    """A named geometry, whose pool and retention are free. share: how often the default mix takes it."""

    name: str
    origin: Yield
    base: Geometry
    share: int = 0

    def geometry(self, num_blocks: int, retention: int | None) -> Geometry:
        return replace(self.base, num_blocks=num_blocks, retention=retention)

    def fits(self, geometry: Geometry) -> bool:
        return (self.base.groups, self.base.unit) == (geometry.groups, geometry.unit)


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("16/16", Yield.TWIN, Geometry.of(16, (16,), unit=4), 4),
        Shape("8/8", Yield.TWIN, Geometry.of(8, (8, 8), unit=2), 4),
        Shape("544/544", Yield.YIELDED, Geometry.of(544, (544,) * 3, unit=16), 1),  # Qwen3-Next
        Shape("400/400", Yield.YIELDED, Geometry.of(400, (400,) * 9, unit=16), 1),  # Granite 4.0 Tiny, no checkpoints
        Shape("16", Yield.YIELDED, Geometry.of(16, unit=16), 1),  # no hybrid: most models
        Shape("4/16", Yield.LEGAL, Geometry.of(4, (16,), unit=2), 3),
        Shape("128/512", Yield.LEGAL, Geometry.of(128, (512,), unit=16), 1),
    )
}


def shape_of(geometry: Geometry) -> Shape:
    """The named shape of a geometry; one called after its sizes where it has no name."""
    for shape in SHAPES.values():
        if shape.fits(geometry):
            return shape
    sizes = [group.block_size for group in geometry.groups]
    origin = Yield.TWIN if len(set(sizes)) == 1 else Yield.LEGAL
    return Shape("/".join(map(str, sizes)), origin, geometry)


@dataclass(frozen=True, slots=True)
class Profile:
    """What a workload leans on. Weights are relative; chances are percentages.

    burst: requests that arrive together. family: chance that a request shares a prefix with an earlier one.
    tight: chance that the pool has room for little more than one longest request. grid: chance that a shared prefix ends
    on a block boundary rather than a unit boundary.
    """

    name: str
    purpose: str
    burst: tuple[int, ...] = (1, 1, 2)
    steps: tuple[int, ...] = (1, 1, 2, 3, 5)
    answers: tuple[int, ...] = (1, 2, 3, 6)
    depths: tuple[int, ...] = (1, 1, 2)
    fences: int = 30
    family: int = 70
    grid: int = 40
    tight: int = 30
    abort: int = 8
    complete: int = 10
    reset: int = 2
    reuse: int = 5
    follow: int = 15
    salt: int = 5
    priority: int = 20


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "same-step",
            "requests that share prefixes arrive together and meet in one step",
            burst=(2, 2, 3, 4),
            family=95,
            grid=70,
            tight=10,
        ),
        Profile(
            "cow",
            "prefixes end inside blocks, so that hits and snapshots copy",
            burst=(1, 1, 1, 2),
            steps=(2, 3, 5, 8),
            family=95,
            grid=5,
            tight=20,
            follow=25,
        ),
        Profile(
            "preempt",
            "long answers in small pools, with priorities",
            burst=(2, 3, 4),
            answers=(6, 12, 24, 40),
            family=50,
            tight=100,
            priority=60,
        ),
        Profile(
            "async",
            "two and three steps in flight, with and without fences, ends and aborts while they fly",
            depths=(2, 2, 3),
            fences=50,
            abort=15,
            complete=30,
        ),
        Profile(
            "churn",
            "aborts, resets and ids that come again",
            burst=(1, 2, 3),
            steps=(1, 1, 2),
            abort=30,
            reset=10,
            reuse=50,
            salt=20,
        ),
    )
}
FAMILIES = (0, 0, 0, 5000)  # first token of each family's text; the first family is the most common
OWN = 10_000  # first token of what prompts do not share
ALL = "all"  # the default: each property from a profile of its own


class Chooser(Protocol):
    """Where choices come from."""

    def pick(self, options: Sequence[T]) -> T: ...
    def integer(self, low: int, high: int) -> int: ...


class RandomChooser:
    """Choices of a seeded generator."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.rng.random() * len(options))]

    def integer(self, low: int, high: int) -> int:
        return low + int(self.rng.random() * (high - low + 1))


class DrawChooser:
    """Choices of Hypothesis. Earlier options and smaller numbers count as simpler."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw

    def pick(self, options: Sequence[T]) -> T:
        return self.draw(st.sampled_from(options))

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))


def random_program(rng: random.Random, profile: str = ALL, shapes: Sequence[Shape] = ()) -> Program:
    """A program of 20 to 60 operations, the same for the same state of `rng`. No shapes: the default mix."""
    return build(RandomChooser(rng), profile, shapes)


@st.composite
def programs(draw: st.DrawFn, profile: str = ALL, shapes: Sequence[Shape] = ()) -> Program:
    """The same programs as a Hypothesis strategy."""
    return build(DrawChooser(draw), profile, shapes)


def build(choose: Chooser, profile: str, shapes: Sequence[Shape]) -> Program:
    mix = shapes or [shape for shape in SHAPES.values() for _ in range(shape.share)]
    return Builder(choose, mixed(choose) if profile == ALL else PROFILES[profile], choose.pick(mix)).program()


def mixed(choose: Chooser) -> Profile:
    """A profile with each property taken from one of the named ones."""
    options = list(PROFILES.values())
    names = [f.name for f in fields(Profile) if f.name not in ("name", "purpose")]
    return replace(options[0], name=ALL, **{name: getattr(choose.pick(options), name) for name in names})


class Builder:
    """One program in the making."""

    def __init__(self, choose: Chooser, profile: Profile, shape: Shape) -> None:
        self.choose = choose
        self.profile = profile
        self.shape = shape
        self.block = shape.base.scheduler_block
        self.unit = shape.base.unit
        self.longest = 4 * self.block + max(profile.answers)  # text of one request, its answer included
        self.operations: list[AnyOperation] = []
        self.ids: list[str] = []
        self.prefixes: dict[int, list[int]] = {family: [] for family in FAMILIES}  # lengths at which prompts part

    def chance(self, percent: int) -> bool:
        return self.choose.integer(1, 100) <= percent

    def program(self) -> Program:
        length = self.choose.integer(20, 60)
        self.arrivals()
        while len(self.operations) < length:
            self.more()
        return Program(self.config(), tuple(self.operations))

    def more(self) -> None:
        """Steps, and what happens between them."""
        profile = self.profile
        self.operations += [Schedule()] * self.choose.pick(profile.steps)
        if self.chance(profile.complete):
            self.operations.append(Complete())
        if self.chance(profile.abort):
            self.operations.append(Abort(self.choose.pick(self.ids)))
        if self.chance(profile.reset):
            self.operations.append(ResetCache())
        if self.chance(50):
            self.arrivals()

    def arrivals(self) -> None:
        for _ in range(self.choose.pick(self.profile.burst)):
            add = self.arrival()
            self.operations.append(add)
            if add.id not in self.ids:
                self.ids.append(add.id)

    def arrival(self) -> Add:
        choose, profile = self.choose, self.profile
        after = choose.pick(self.ids) if self.ids and self.chance(profile.follow) else None
        reuse = bool(self.ids) and self.chance(profile.reuse)
        return Add(
            id=choose.pick(self.ids) if reuse else name_of(len(self.ids)),
            prompt=((OWN, OWN + choose.integer(1, self.unit * 2)),) if after else self.prompt(),
            max_tokens=choose.pick(profile.answers),
            priority=choose.integer(0, 2) if self.chance(profile.priority) else 0,
            salt=choose.pick(("red", "blue")) if self.chance(profile.salt) else None,
            after=after,
        )

    def prompt(self) -> tuple[Run, ...]:
        """A prefix of a family's text, then tokens of its own; the whole has a length near a boundary."""
        length = self.boundary() + self.choose.pick((0, 1, -1, 2))
        family = self.choose.pick(FAMILIES)
        shared = self.shared(self.prefixes[family], length) if self.chance(self.profile.family) else 0
        own = OWN + 10 * self.choose.integer(0, 400) if shared < length else OWN
        return tuple(run for run in ((family, family + shared), (own, own + length - shared)) if run[0] < run[1])

    def shared(self, prefixes: list[int], length: int) -> int:
        """How much of the family's text a prompt of this length begins with: mostly up to where another one parted."""
        known = [prefix for prefix in prefixes if prefix <= length]
        shared = self.choose.pick(known) if known and self.chance(60) else min(length, self.boundary())
        shared = min(length, shared + self.choose.pick((0, 0, 0, 0, 1)))
        prefixes.append(shared)
        return shared

    def boundary(self) -> int:
        """A multiple of a block size or of the unit, at most three scheduler blocks and a bit."""
        group_block = self.choose.pick(self.shape.base.groups).block_size
        blocks = self.choose.integer(1, max(1, 3 * self.block // group_block)) * group_block
        if self.chance(self.profile.grid):
            return blocks
        return blocks - group_block + self.choose.integer(1, group_block // self.unit) * self.unit

    def config(self) -> Config:
        """The configuration that the operations need: a model long enough, a pool that is small but large enough."""
        choose, profile, block = self.choose, self.profile, self.block
        budget = block * choose.pick((1, 2, 4)) + choose.pick((0, 0, self.unit, block // 2, 1))
        policy = Policy.PRIORITY if self.chance(profile.priority) else Policy.FCFS
        config = Config(
            self.shape.geometry(1_000_000, choose.pick((None, 0))),
            max_batched_tokens=budget,
            max_seqs=choose.pick((2, 4, 8)),
            max_model_len=self.longest,
            depth=choose.pick(profile.depths),
            fences=self.chance(profile.fences),
            policy=policy,
            junctions=choose.pick((False, True)),
        )
        least = least_pool(config)
        spare = choose.integer(0, least // 4) if self.chance(profile.tight) else choose.integer(least // 2, 3 * least)
        return replace(config, geometry=replace(config.geometry, num_blocks=least + spare))


def name_of(number: int) -> str:
    """a, b, .., z, a1, b1, .."""
    letter, round_ = chr(ord("a") + number % 26), number // 26
    return f"{letter}{round_ or ''}"
