"""The registry of checks: every sentence that kvproof holds an engine to, with its severity and the reason it exists.

A check is *outside* (the shadow device sees it on step records alone) or *inside* (the kernel sees it on what the engine did
to its pool). A check that fires makes a `Fault`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvproof.spec.faults import Severity


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


_Row = tuple[str, Severity, str, str]

CORRUPTION, LEAK, CRASH, STALL = Severity.CORRUPTION, Severity.LEAK, Severity.CRASH, Severity.STALL
ACCOUNTING, EVENT = Severity.ACCOUNTING, Severity.EVENT

# fmt: off
_OUTSIDE: tuple[_Row, ...] = (
    ("read-lineage", CORRUPTION, "an attention read finds, in every slot, the bytes of the reader's own prefix",
     "the request attends to another request's tokens or to stale ones, and its output is silently wrong"),
    ("state-ready", CORRUPTION, "a state read finds the state after exactly its prefix, before the forward pass",
     "the recurrence continues from a wrong state and every later token is silently wrong"),
    ("null-written", CORRUPTION, "the null block is never zeroed, copied or written",
     "every request's padding slots point at it"),
    ("copy-batch", CORRUPTION,
     "the copies of a step have distinct destinations, stay inside the pool and agree with their declared meaning",
     "two writers of one block, or a read after a write, leave bytes that depend on timing"),
    ("table-covers", CRASH, "a request's table has a block for every token that it computes or reads",
     "the kernel would write through the null block or past the table"),
    ("row-continues", CORRUPTION,
     "a row starts where the same request's computed tokens ended, and hits only what was computed",
     "tokens would be skipped or computed twice"),
    ("outside-write-race", CORRUPTION, "an outside write runs on a block that no step in flight touches",
     "a connector load and a forward pass write the same page at the same time"),
    ("table-agreement", CORRUPTION, "the worker's block table equals the scheduler's",
     "the worker writes blocks that the scheduler thinks are elsewhere"),
    ("finished-forgotten", LEAK, "the worker is told of every request that ends",
     "the worker keeps the request's row for ever"),
)

_INSIDE: tuple[_Row, ...] = (
    ("acquire-free", CORRUPTION, "a block is handed out only when nobody holds it",
     "two owners write one block"),
    ("hit-answers", CORRUPTION,
     "a prefix hit takes blocks that are keyed for exactly the prefix that it counts as computed, at most all but one token",
     "the request skips computing tokens whose bytes are not there"),
    ("used-stays-held", CORRUPTION, "a block that a step in flight or being staged uses stays held until the horizon",
     "the block is reused while the device still writes or reads it"),
    ("endpoint-held", CORRUPTION, "both endpoints of a copy stay held until the copy ran",
     "the source is overwritten before it is read, or the destination gets a second owner"),
    ("source-ready", CORRUPTION, "the source of a copy holds what the copy is for before the step starts",
     "the copy takes bytes that the same step has yet to write"),
    ("copy-delivered", CORRUPTION, "the copies that the pool staged are the copies that the worker is told",
     "a private block stays empty"),
    ("key-true", CORRUPTION,
     "a keyed block answers all its keys once the staged step is done; "
     "a state key only at a chunk end or a declared checkpoint",
     "a later request that hits the key reads other bytes than it asked for"),
    ("needs-kept", CORRUPTION, "what a holder relies on, its block holds; a shared or published block is not overwritten",
     "a running request loses bytes that it has yet to read"),
    ("null-inert", CORRUPTION, "the null block is never held, keyed or pinned",
     "it would be evicted or served as a hit"),
    ("retired-key", ACCOUNTING, "a key that a longer one replaced does not come back to that block",
     "the index holds entries that the engine believes gone, and the event stream contradicts itself"),
    ("refs-are-holders", ACCOUNTING, "a block's reference count is the number of its holders",
     "one more free, and a block in use is reused; one less, and it is never reused"),
    ("free-queue", ACCOUNTING, "the free queue holds exactly the blocks that nobody holds, each once",
     "a block in the queue and in use is handed out twice"),
    ("index-agrees", ACCOUNTING, "the index and the reverse index name the same blocks for the same keys",
     "an eviction leaves a key behind that points at a reused block"),
    ("hash-injective", CORRUPTION, "two prefixes have the same hash only when their tokens, adapter and salt are the same",
     "a request hits another text's blocks"),
    ("no-orphan", LEAK, "a request that is gone holds nothing, and no per-request map remembers it",
     "the pool shrinks for ever, or a reused id inherits stale bookkeeping"),
    ("fence-drains", LEAK, "a fence ends within as many completions as there are steps in flight",
     "the pool stays short of blocks that nobody uses"),
    ("demand-bounds", CRASH, "an allocation takes at most what its estimate asked for",
     "the pool runs dry in the middle of an allocation and the engine dies"),
    ("failure-changes-nothing", LEAK, "a failed allocation takes, hits, registers and stages nothing",
     "a request that was never admitted holds blocks"),
    ("event-residency", EVENT,
     "replaying the events from empty gives the residency of every key, Stored and Removed alternating with it",
     "a router that listens sends requests to an engine that has nothing cached for them"),
    ("event-parent", EVENT, "a Stored event names a parent that was announced before, or the root",
     "a listener cannot attach the block to its tree"),
    ("event-shape", EVENT, "a Stored event is not empty and carries as many tokens as its hashes cover",
     "a listener computes wrong hashes from it"),
    ("progress", STALL, "if a request could run, some request advances within a bound",
     "the server hangs"),
    ("preemption-frees", STALL, "a preemption gives capacity back now or does not happen",
     "requests lose their work and nobody gains"),
    ("engine-alive", CRASH, "the engine survives every legal operation",
     "the server dies"),
)

# The guards that protect a check. A refused guard is reported under the check, which is what users know.
_GUARDS: dict[str, tuple[str, ...]] = {
    "no-orphan": ("its owner is alive", "the new owner is alive", "it holds nothing but fences"),
    "acquire-free": ("the block is free",),
    "refs-are-holders": ("the holder holds nothing yet", "somebody holds the block", "the holder is live on the block",
        "the holder is a fence on the block"),
    "hit-answers": ("the block answers the key", "the key covers the need"),
    "null-inert": ("the block is not null",),
    "fence-drains": ("the fence is a step that exists",),
    "used-stays-held": ("what is in use stays held", "the fence reaches the last use", "the fence is behind the horizon"),
    "endpoint-held": ("the target is pinned", "the source is pinned", "both slots are live"),
    "copy-batch": ("nothing else filled it", "the forward pass comes later", "it is not the source of a copy",
        "no staged copy reads or writes it", "the step does not load the source"),
    "source-ready": ("the source is ready", "the state is there before the forward pass"),
    "key-true": ("the content answers the key when the step is done", "keys stay true"),
    "needs-kept": ("other holders keep their bytes", "nobody loses bytes", "no staged read loses its state",
        "the writer gets what it relies on", "the loader gets what it relies on"),
    "retired-key": ("the key was not retired from it",),
    "outside-write-race": ("it does not load the block", "no load is under way", "no load runs on the source",
        "no step in flight or staged touches it", "it has no keys", "nobody relies on it", "the holder loads the block",
        "it is the only load"),
    "progress": ("a step is in flight",),
}
# fmt: on

CHECKS = {
    name: Check(name, side, severity, sentence, why)
    for side, rows in ((Side.OUTSIDE, _OUTSIDE), (Side.INSIDE, _INSIDE))
    for name, severity, sentence, why in rows
}
GUARDS = {guard: check for check, guards in _GUARDS.items() for guard in guards}
