"""What passes between a scheduler and a worker, and what an engine is asked to do.

Every engine under test speaks these records: a `Request` goes in, a `Step` comes out and goes to the device, its sampled
tokens go back. Block ids are plain ints; a table is one list of block ids per group, in slot order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kvproof.spec.geometry import Geometry


class Meaning(StrEnum):
    """What a batch of copies means."""

    SIMULTANEOUS = "simultaneous"  # all reads, then all writes: what vLLM's worker does
    IN_ORDER = "in_order"


class Policy(StrEnum):
    """Whom a full pool preempts: the newest running request, or the one of lowest priority (largest number)."""

    FCFS = "fcfs"
    PRIORITY = "priority"


@dataclass(frozen=True, slots=True)
class Config:
    """An engine's configuration. Sizes in tokens, `depth` in steps.

    max_batched_tokens: token budget of one step. max_seqs: running requests at most.
    depth: steps issued before the first one's results come back; 1 is synchronous scheduling.
    fences: blocks of steps in flight return to the pool only when those steps complete, as an engine with outside
        writers (connector loads) needs it; else they return at once and device order protects them.
    junctions: also keep the state at an observed end of a shared prefix that is no block boundary.
    """

    geometry: Geometry
    max_batched_tokens: int = 256
    max_seqs: int = 8
    max_model_len: int = 2048
    depth: int = 1
    fences: bool = False
    policy: Policy = Policy.FCFS
    junctions: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """A request as a client sends it. Its epoch (how often the id was used before) is the receiver's to count.

    salt: namespace of its prefix (cache salt, adapter). priority: smaller is more urgent.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    priority: int = 0
    salt: str | None = None


@dataclass(frozen=True, slots=True)
class Extras:
    """What may come with a request beyond its record, for engines with a connector or a drafter.

    outside: tokens of its text that a connector can load. ordered: whether such a load is part of the request's first step,
    or runs beside the steps. save: its blocks are saved when it is finished. drafts: draft tokens that each decode step tries.
    """

    outside: int = 0
    ordered: bool = False
    save: bool = False
    drafts: int = 0


@dataclass(slots=True)
class Load:
    """An outside write of tokens [start, stop) of a request; blocks: per group, those that it fills, in slot order.

    ordered: part of the step that lists it, before the forward pass; else it runs beside the steps.
    """

    request: str
    start: int
    stop: int
    ordered: bool
    blocks: list[list[int]]


@dataclass(slots=True)
class Row:
    """One request's share of a step, as a worker is told: compute tokens [start, start + count).

    table: the whole block table where the request is new to the worker or resumed; it replaces what the worker had.
    appended: blocks that go to the end of each group's table otherwise; empty lists where there are none.
    samples: whether the step yields a token for this request (a middle prefill chunk does not).
    drafts: how many of its last tokens are drafts, computed on speculation.
    """

    request: str
    start: int
    count: int
    samples: bool
    table: list[list[int]] | None = None
    appended: list[list[int]] | None = None
    drafts: int = 0

    @property
    def stop(self) -> int:
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class Copy:
    """One whole page of one block to another, before the forward pass."""

    src: int
    dst: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state after `position` tokens, inside this step's chunk, exported to `block` by the forward pass."""

    request: str
    group: int
    block: int
    position: int


@dataclass(slots=True)
class Step:
    """One scheduler iteration, in the order in which the device runs it: forget, zero, copy, forward.

    number: counts issued steps from 1. finished: requests the worker forgets before this step (finished or aborted).
    preempted: requests whose blocks were taken back; they come again with a whole table.
    zeroes: block ids cleared before the copies. loads: outside writes that are part of the step.
    """

    number: int
    rows: list[Row] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    zeroes: list[int] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    meaning: Meaning = Meaning.SIMULTANEOUS

    @property
    def issued(self) -> bool:
        """Whether there is anything to run: only then does it go to the device, and count."""
        return bool(self.rows or self.copies)


@dataclass(frozen=True, slots=True)
class Stored:
    """A KV event: blocks of `group` can now be found under these hashes. `block_size` tokens per hash."""

    group: int
    hashes: tuple[object, ...]
    parent: object | None
    tokens: tuple[int, ...]
    block_size: int


@dataclass(frozen=True, slots=True)
class Removed:
    """A KV event: one block less can be found under each of these hashes."""

    group: int
    hashes: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Cleared:
    """A KV event: nothing can be found any more."""


Event = Stored | Removed | Cleared
