"""Workloads for engines with a connector and a drafter: plain programs, some of whose requests bring more than a prompt."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from kvproof.audit.program import Add, AnyOperation, EndLoad, EndSave, Program
from kvproof.audit.workload import ALL, SHAPES, Shape, Yield, random_program
from kvproof.spec.geometry import Geometry
from kvproof.spec.records import Config

ATTENTION_ALONE = Shape("16", Yield.LEGAL, Geometry.of(16, (), unit=16), 1)  # drafts cannot roll a state back


def connected_program(rng: random.Random, profile: str = ALL, shapes: Sequence[Shape] = ()) -> Program:
    """Every other program as it is, the others with loads, saves and drafts. The same for the same state of `rng`."""
    mix = shapes or [*(shape for shape in SHAPES.values() for _ in range(shape.share)), *(ATTENTION_ALONE,) * 2]
    program = random_program(rng, profile, mix)
    return connect(rng, program) if rng.random() < 0.5 else program


def connect(rng: random.Random, program: Program) -> Program:
    """Some requests get extras that fit the configuration; loads and saves end somewhere later, or when all is over."""
    operations: list[AnyOperation] = []
    loading: list[str] = []
    for plain in program.operations:
        operation = with_extras(rng, plain, program.config) if isinstance(plain, Add) else plain
        if isinstance(operation, Add):
            if operation.outside and not operation.ordered:
                loading.append(operation.id)
        elif loading and rng.random() < 0.4:
            operations.append(EndLoad(loading.pop(rng.randrange(len(loading))), ok=rng.random() < 0.7))
        elif rng.random() < 0.1:
            operations.append(EndSave())
        operations.append(operation)
    return program.with_operations(operations)


def with_extras(rng: random.Random, add: Add, config: Config) -> Add:
    """Drafts only where nothing else can be in flight and no state would have to roll back; loads beside the steps only
    where no step is in flight, or blocks wait behind fences."""
    options = ["nothing", "nothing", "within", "save"]
    if config.depth == 1 or config.fences:
        options += ["beside", "beside"]
    if config.depth == 1 and not config.geometry.states:
        options += ["drafts"] * 4
    choice = rng.choice(options)
    if choice == "save":
        return msgspec.structs.replace(add, save=True)
    if choice == "drafts":
        return msgspec.structs.replace(add, drafts=rng.randint(1, 4), max_tokens=add.max_tokens + 3)
    if choice in ("within", "beside"):
        outside, ordered = rng.randint(1, len(add.tokens)), choice == "within"
        return msgspec.structs.replace(add, outside=outside, ordered=ordered, fails=ordered and rng.random() < 0.3)
    return add
