"""The target protocol: what an engine under test must offer.

Two kinds of check run on a target. *Outside* checks need only `Target`: requests in, `Step` records out; they run on any
engine. *Inside* checks also need `journal` and `observe`: what the engine did to its block pool, operation by operation. A
target that has no inside view returns an empty journal and None, and loses nothing else.

The order of calls: `reset`, then any of `add`, `abort`, `schedule`, `complete`, `reset_cache`; `complete` in the order of
`schedule`, at most `config.depth` steps apart. After each call the harness drains `journal()`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import msgspec

from kvproof.spec.errors import KvproofError
from kvproof.spec.records import Config, Event, Extras, Load, Request, Step


class TargetUnavailable(KvproofError):
    """The engine cannot be driven: not installed, an unknown release or a changed signature."""

    code = 4


class TargetCrashed(KvproofError):
    """The engine itself raised while it did a legal operation. A finding of severity `crash`."""


class OpKind(StrEnum):
    """What an engine did to its pool."""

    ALLOCATE = "allocate"  # slots for tokens [start, stop) of a request; may hit, copy and register keys
    FREE = "free"  # a request leaves its table: finished, aborted or preempted
    COPIES_OUT = "copies_out"  # the endpoints of this step's copies lose the hold that the copies had on them
    DRAIN = "drain"  # deferred frees whose fence was reached return to the pool
    RESET = "reset"  # the prefix cache was emptied
    BEGIN_LOAD = "begin_load"  # an outside load of tokens [start, stop) begins, beside the steps; slots as in ALLOCATE
    END_LOAD = "end_load"  # it ended: the request keeps its table where it brought the tokens, else it gave its blocks back
    SPOIL = "spoil"  # a load that was part of a step failed: a request computes anew from token `start` on
    HAND_OVER = "hand_over"  # a finished request's blocks pass to a job that saves them
    END_SAVE = "end_save"  # that job is done
    OTHER = "other"


Hash = object  # an engine's own name of a prefix; hashable
Tables = list[list[int]] | None  # block ids by group and slot, 0 where nothing is held


class Op(msgspec.Struct):
    """One operation of an engine on its pool, as it stands right after it. A Struct, as several are made at each step.

    taken: blocks that left the free queue to be written anew, in order. hits: blocks that got one more reference because
        a lookup found them, in order. A failed allocation has `failed` set and should have changed nothing.
    start, stop: token range that the allocation is for; hit: tokens of it answered by the cache (start includes them).
    tables: for each request whose table may have changed, its whole table per group (0 where nothing is held), None
        where the request holds no table any more.
    copies: (source, destination) pairs that this operation staged.
    refs: reference count of each block this operation may have touched. keys: in the order in which
        they happened, each change of a block's index entries: the block and all its (group, hash) entries right after it,
        as the reverse index and the index agree on them. A block may occur more than once: a key that goes and comes back.
        A block that was taken has none, unless it is listed.
    deferred: (fence step, block ids) entries that this operation put behind a fence.
    demand: the number of free blocks that the engine's estimate asked for, None where unknown.
    free_blocks: length of the free queue after the operation, by its own count.
    """

    kind: OpKind
    request: str | None = None
    start: int = 0
    stop: int = 0
    hit: int = 0
    failed: bool = False
    taken: Sequence[int] = ()
    hits: Sequence[int] = ()
    dropped: Sequence[int] = ()
    tables: Mapping[str, Tables] = {}
    copies: Sequence[tuple[int, int]] = ()
    refs: Mapping[int, int] = {}
    keys: Sequence[tuple[int, list[tuple[int, Hash]]]] = ()
    deferred: Sequence[tuple[int, list[int]]] = ()
    demand: int | None = None
    free_blocks: int | None = None


@dataclass(slots=True)
class Observation:
    """Everything an engine keeps about its pool, for the full comparison at quiescence and at intervals.

    refs: by block id, null block included. free_queue: block ids in order of reuse, walked along the links. index: for
    each (group, hash) the blocks found under it. tables: of every request that holds one. leftovers: named per-request
    maps that are not empty, with what is in them; only finished or unknown requests count as leftovers. reverse: the
    entries that each block itself is said to carry, blocks without any left out; None where the engine keeps no such map.
    """

    refs: list[int]
    free_queue: list[int]
    index: dict[tuple[int, Hash], list[int]]
    tables: dict[str, list[list[int]]]
    pending_copies: list[tuple[int, int]]
    deferred: list[tuple[int, list[int]]]
    leftovers: dict[str, list[str]]
    reverse: dict[int, list[tuple[int, Hash]]] | None = None


@dataclass(slots=True)
class Result:
    """What `complete` reports: requests that ended with this step, and the tokens accepted for each row that samples.

    failed: filled in by the harness: requests whose load in this step had failed.
    """

    finished: list[str] = field(default_factory=list)
    accepted: dict[str, list[int]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


class ConnectorTarget(Protocol):
    """What a target adds that has a connector and a drafter."""

    def add_with(self, request: Request, extras: Extras) -> None:
        """Like `add`. Raises `GeometryError` where the extras do not fit the configuration."""

    def loads(self) -> list[Load]:
        """Loads beside the steps that began since the last call. Those inside a step are listed in it."""

    def end_load(self, request_id: str, succeeded: bool) -> None:
        """A load beside the steps is over."""

    def saves(self) -> list[int]:
        """Jobs that save blocks of finished requests, oldest first."""

    def end_save(self, job: int) -> None: ...

    def complete_with(self, step: Step, tokens: Mapping[str, int | list[int]], failed: list[str]) -> Result:
        """Like `complete`; several tokens where drafts were accepted. failed: requests whose load in this step failed."""


class Target(Protocol):
    """An engine under test."""

    name: str
    release: str

    def reset(self, config: Config) -> None:
        """Start anew with an empty pool. Raises `TargetUnavailable` or `GeometryError` where it cannot serve `config`."""

    def add(self, request: Request) -> None: ...

    def abort(self, request_id: str) -> None: ...

    def schedule(self) -> Step:
        """One scheduler iteration. The step counts as issued when this returns, unless it has no rows and no copies."""

    def complete(self, step: Step, tokens: Mapping[str, int]) -> Result:
        """The oldest step in flight is done; `tokens` has the sampled token of each row that samples."""

    def reset_cache(self) -> bool:
        """Empty the prefix cache (weights changed); preempts running requests. False where the engine refused."""

    def busy(self) -> bool:
        """Whether any request is waiting or running."""

    def events(self) -> list[Event]:
        """KV events since the last call, in order. Hashes are the engine's own names."""

    def hashes(self, request_id: str, since: int = 0) -> list[Hash]:
        """The engine's names of the request's prefixes, one per unit, from the given one on; also after it ended."""

    def journal(self) -> list[Op]:
        """Operations since the last call, in order; empty where the engine shows none."""

    def observe(self) -> Observation | None:
        """The whole pool; None where the engine does not show it."""
