"""A block pool without a scheduler: who holds which block, against the pool's own counts and queue.

Unlike a scheduler, a program gives blocks back that nobody holds: a pool that does not refuse it has lost count.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from kvproof.audit.program import AnyOperation, Free, Hit, Key, Program, Take
from kvproof.audit.session import Outcome
from kvproof.audit.target import TargetCrashed
from kvproof.audit.targets.vllm_pool import VllmPool
from kvproof.audit.workload import Shape
from kvproof.spec.faults import Fault
from kvproof.spec.geometry import Geometry
from kvproof.spec.records import Config

BLOCK = 4  # tokens


def random_pool_program(rng: random.Random, profile: str, shapes: Sequence[Shape]) -> Program:
    """30 operations on a pool of 2 to 4 blocks to give. There is one profile and one geometry."""
    blocks = rng.randint(3, 5)
    makers = (lambda _: Take(), Key, Hit, Free)
    operations: list[AnyOperation] = [rng.choice(makers)(rng.randrange(1, blocks)) for _ in range(30)]
    geometry = Geometry.of(BLOCK, num_blocks=blocks)
    return Program(Config(geometry, max_batched_tokens=BLOCK, max_model_len=BLOCK), tuple(operations))


def run_pool_program(program: Program) -> Outcome:
    """Runs a program on the block pool of the installed vLLM. Raises `TargetUnavailable`."""
    run = _Run(program.config.geometry.num_blocks)
    for index, operation in enumerate(program.operations):
        run.at = index
        run.do(operation)
        run.compare()
    return run.outcome


class _Run:
    """The pool, and beside it the holders of each block and the blocks that are registered."""

    def __init__(self, blocks: int) -> None:
        self.pool = VllmPool(blocks, unit=BLOCK)
        self.blocks = blocks
        self.holders: Counter[int] = Counter()
        self.keyed: set[int] = set()
        self.at = 0
        self.outcome = Outcome()

    def do(self, operation: AnyOperation) -> None:
        try:
            self.outcome.actions[type(operation).__name__.lower()] += 1
            self.outcome.steps += 1
            match operation:
                case Take():
                    self.take()
                case Key(block) if self.holders[block] > 0 and block not in self.keyed:
                    self.pool.key([block], range(block * BLOCK, (block + 1) * BLOCK), 0, 1)
                    self.keyed.add(block)
                case Hit(block) if block in self.keyed:
                    self.pool.hit(block)
                    self.holders[block] += 1
                case Free(block) if block < self.blocks:
                    self.free(block)
        except TargetCrashed as crash:
            self.fault("engine-alive", f"the pool raised {crash}", type(crash.__cause__ or crash).__name__)

    def take(self) -> None:
        if sum(1 for block in range(1, self.blocks) if self.holders[block] < 1):
            (block,) = self.pool.take(1)
            if self.holders[block] > 0:
                self.fault("acquire-free", f"block {block} is handed out and {self.holders[block]} hold it", "held block taken")
            self.keyed.discard(block)
            self.holders[block] += 1

    def free(self, block: int) -> None:
        if self.holders[block] > 0:
            self.pool.free([block])
            self.holders[block] -= 1
            return
        try:
            self.pool.free([block])
        except TargetCrashed:
            return  # refused, as it should be
        self.fault("refs-are-holders", f"block {block} is given back, and nobody holds it", "double free goes unnoticed")

    def compare(self) -> None:
        seen = self.pool.observe()
        for block, count in enumerate(seen.refs):
            if block and count != self.holders[block]:
                way = "negative" if count < 0 else "too low" if count < self.holders[block] else "too high"
                what = f"block {block} has {self.holders[block]} holders and a reference count of {count}"
                self.fault("refs-are-holders", what, f"pool, count {way}")
        queue = Counter(seen.free_queue)
        for block in range(1, self.blocks):
            if queue[block] != (self.holders[block] < 1):
                what = f"block {block} has {self.holders[block]} holders and is in the free queue {queue[block]} times"
                self.fault("free-queue", what, "pool, queue is not the unheld blocks")
        for entry, blocks in seen.index.items():
            if not set(blocks) <= self.keyed:
                self.fault("index-agrees", f"{entry} leads to {blocks}; registered are {self.keyed}", "pool, stale entry")

    def fault(self, check: str, what: str, signature: str) -> None:
        self.outcome.note(Fault(check, what, signature), self.at, None)
