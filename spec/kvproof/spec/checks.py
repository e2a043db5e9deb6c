"""The registry of checks: every sentence that kvproof holds an engine to, with its severity and the reason it exists.

A check is *outside* (the shadow device sees it on step records alone) or *inside* (the kernel sees it on what the engine did
to its pool). A check that fires makes a `Fault`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Severity(StrEnum):
    """What a broken check costs, worst first."""

    CORRUPTION = "corruption"  # a reader gets wrong bytes
    LEAK = "leak"
    CRASH = "crash"
    STALL = "stall"
    ACCOUNTING = "accounting"  # index and queue disagree; no reader is wrong yet
    EVENT = "event"  # the event stream lies
    WASTE = "waste"


class Side(StrEnum):
    OUTSIDE = "outside"
    INSIDE = "inside"


@dataclass(frozen=True, slots=True)
class Check:
    """A named sentence. `why` says what goes wrong for a user when it is broken."""

    name: str
    side: Side
    severity: Severity
    sentence: str
    why: str


@dataclass(slots=True)
class Fault:
    """One firing of a check.

    what: one sentence with the values. signature: the part of it that stays the same from run to run (no ids, no counts),
    so that equal faults of two runs count once. severity: that of the check unless this instance is known to be milder.
    """

    check: str
    what: str
    signature: str = ""
    severity: Severity | None = None
    step: int = 0
    request: str | None = None
    blocks: tuple[int, ...] = field(default=())


CHECKS: dict[str, Check] = {}


def _check(name: str, side: Side, severity: Severity, sentence: str, why: str) -> None:
    CHECKS[name] = Check(name, side, severity, sentence, why)


def _outside(name: str, severity: Severity, sentence: str, why: str) -> None:
    _check(name, Side.OUTSIDE, severity, sentence, why)


def _inside(name: str, severity: Severity, sentence: str, why: str) -> None:
    _check(name, Side.INSIDE, severity, sentence, why)


_outside(
    "read-lineage",
    Severity.CORRUPTION,
    "an attention read finds, in every slot, the bytes of the reader's own prefix",
    "the request attends to another request's tokens or to stale ones, and its output is silently wrong",
)
_outside(
    "state-ready",
    Severity.CORRUPTION,
    "a state read finds the state after exactly its prefix, before the forward pass",
    "the recurrence continues from a wrong state and every later token is silently wrong",
)
_outside(
    "null-written",
    Severity.CORRUPTION,
    "the null block is never zeroed, copied or written",
    "every request's padding slots point at it",
)
_outside(
    "copy-batch",
    Severity.CORRUPTION,
    "the copies of a step have distinct destinations, stay inside the pool and agree with their declared meaning",
    "two writers of one block, or a read after a write, leave bytes that depend on timing",
)
_outside(
    "table-covers",
    Severity.CRASH,
    "a request's table has a block for every token that it computes or reads",
    "the kernel would write through the null block or past the table",
)
_outside(
    "row-continues",
    Severity.CORRUPTION,
    "a row starts where the same request's computed tokens ended, and hits only what was computed",
    "tokens would be skipped or computed twice",
)
_outside(
    "outside-write-race",
    Severity.CORRUPTION,
    "an outside write runs on a block that no step in flight touches",
    "a connector load and a forward pass write the same page at the same time",
)
_outside(
    "table-agreement",
    Severity.CORRUPTION,
    "the worker's block table equals the scheduler's",
    "the worker writes blocks that the scheduler thinks are elsewhere",
)
_outside(
    "finished-forgotten",
    Severity.LEAK,
    "the worker is told of every request that ends",
    "the worker keeps the request's row for ever",
)

_inside(
    "acquire-free",
    Severity.CORRUPTION,
    "a block is handed out only when nobody holds it",
    "two owners write one block",
)
_inside(
    "hit-answers",
    Severity.CORRUPTION,
    "a prefix hit takes blocks that are keyed for exactly the prefix that it counts as computed, at most all but one token",
    "the request skips computing tokens whose bytes are not there",
)
_inside(
    "used-stays-held",
    Severity.CORRUPTION,
    "a block that a step in flight or being staged uses stays held until the horizon",
    "the block is reused while the device still writes or reads it",
)
_inside(
    "endpoint-held",
    Severity.CORRUPTION,
    "both endpoints of a copy stay held until the copy ran",
    "the source is overwritten before it is read, or the destination gets a second owner",
)
_inside(
    "source-ready",
    Severity.CORRUPTION,
    "the source of a copy holds what the copy is for before the step starts",
    "the copy takes bytes that the same step has yet to write",
)
_inside(
    "copy-delivered",
    Severity.CORRUPTION,
    "the copies that the pool staged are the copies that the worker is told",
    "a private block stays empty",
)
_inside(
    "key-true",
    Severity.CORRUPTION,
    "a keyed block answers all its keys once the staged step is done; a state key only at a chunk end or a declared checkpoint",
    "a later request that hits the key reads other bytes than it asked for",
)
_inside(
    "needs-kept",
    Severity.CORRUPTION,
    "what a holder relies on, its block holds; a shared or published block is not overwritten",
    "a running request loses bytes that it has yet to read",
)
_inside(
    "null-inert",
    Severity.CORRUPTION,
    "the null block is never held, keyed or pinned",
    "it would be evicted or served as a hit",
)
_inside(
    "retired-key",
    Severity.ACCOUNTING,
    "a key that a longer one replaced does not come back to that block",
    "the index holds entries that the engine believes gone, and the event stream contradicts itself",
)
_inside(
    "refs-are-holders",
    Severity.ACCOUNTING,
    "a block's reference count is the number of its holders",
    "one more free, and a block in use is reused; one less, and it is never reused",
)
_inside(
    "free-queue",
    Severity.ACCOUNTING,
    "the free queue holds exactly the blocks that nobody holds, each once",
    "a block in the queue and in use is handed out twice",
)
_inside(
    "index-agrees",
    Severity.ACCOUNTING,
    "the index and the reverse index name the same blocks for the same keys",
    "an eviction leaves a key behind that points at a reused block",
)
_inside(
    "hash-injective",
    Severity.CORRUPTION,
    "two prefixes have the same hash only when their tokens, adapter and salt are the same",
    "a request hits another text's blocks",
)
_inside(
    "no-orphan",
    Severity.LEAK,
    "a request that is gone holds nothing, and no per-request map remembers it",
    "the pool shrinks for ever, or a reused id inherits stale bookkeeping",
)
_inside(
    "fence-drains",
    Severity.LEAK,
    "a fence ends within as many completions as there are steps in flight",
    "the pool stays short of blocks that nobody uses",
)
_inside(
    "demand-bounds",
    Severity.CRASH,
    "an allocation takes at most what its estimate asked for",
    "the pool runs dry in the middle of an allocation and the engine dies",
)
_inside(
    "failure-changes-nothing",
    Severity.LEAK,
    "a failed allocation takes, hits, registers and stages nothing",
    "a request that was never admitted holds blocks",
)
_inside(
    "event-residency",
    Severity.EVENT,
    "replaying the events from empty gives the residency of every key, Stored and Removed alternating with it",
    "a router that listens sends requests to an engine that has nothing cached for them",
)
_inside(
    "event-parent",
    Severity.EVENT,
    "a Stored event names a parent that was announced before, or the root",
    "a listener cannot attach the block to its tree",
)
_inside(
    "event-shape",
    Severity.EVENT,
    "a Stored event is not empty and carries as many tokens as its hashes cover",
    "a listener computes wrong hashes from it",
)
_inside(
    "progress",
    Severity.STALL,
    "if a request could run, some request advances within a bound",
    "the server hangs",
)
_inside(
    "preemption-frees",
    Severity.STALL,
    "a preemption gives capacity back now or does not happen",
    "requests lose their work and nobody gains",
)
_inside(
    "engine-alive",
    Severity.CRASH,
    "the engine survives every legal operation",
    "the server dies",
)

# Which check a refused guard is reported under. A guard protects one clause; the clause is what users know.
GUARDS: dict[str, str] = {
    "the owner is new": "no-orphan",
    "the owner is alive": "no-orphan",
    "its owner is alive": "no-orphan",
    "the new owner is alive": "no-orphan",
    "it holds nothing but fences": "no-orphan",
    "the block is free": "acquire-free",
    "the holder holds nothing yet": "refs-are-holders",
    "somebody holds the block": "refs-are-holders",
    "the holder is live on the block": "refs-are-holders",
    "the holder is a fence on the block": "refs-are-holders",
    "the block answers the key": "hit-answers",
    "the key covers the need": "hit-answers",
    "the block is not null": "null-inert",
    "the fence is a step that exists": "fence-drains",
    "what is in use stays held": "used-stays-held",
    "the fence reaches the last use": "used-stays-held",
    "the fence is behind the horizon": "used-stays-held",
    "the target is pinned": "endpoint-held",
    "the source is pinned": "endpoint-held",
    "both slots are live": "endpoint-held",
    "source and target differ": "copy-batch",
    "nothing else filled it": "copy-batch",
    "the forward pass comes later": "copy-batch",
    "it is not the source of a copy": "copy-batch",
    "no staged copy reads or writes it": "copy-batch",
    "the source is ready": "source-ready",
    "the state is there before the forward pass": "source-ready",
    "the content answers the key when the step is done": "key-true",
    "keys stay true": "key-true",
    "other holders keep their bytes": "needs-kept",
    "nobody loses bytes": "needs-kept",
    "no staged read loses its state": "needs-kept",
    "the writer gets what it relies on": "needs-kept",
    "the loader gets what it relies on": "needs-kept",
    "the key was not retired from it": "retired-key",
    "the target has no keys": "index-agrees",
    "it does not load the block": "outside-write-race",
    "no load is under way": "outside-write-race",
    "no load runs on the source": "outside-write-race",
    "no step in flight or staged touches it": "outside-write-race",
    "it has no keys": "outside-write-race",
    "nobody relies on it": "outside-write-race",
    "the holder loads the block": "outside-write-race",
    "it is the only load": "outside-write-race",
    "a step is in flight": "progress",
}
