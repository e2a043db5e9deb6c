"""The reference engine: a scheduler of hybrid models over one pool of KV-cache blocks, correct before fast.

It speaks the records of `kvproof.spec.records`: requests go in, steps come out, sampled tokens go back. A prefix is named by
its lineage, so names cannot collide; the lineages are the engine's own and mean nothing to another engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Listing

from kvproof.reference.faults import plant
from kvproof.reference.journal import Entry
from kvproof.reference.scheduler import Scheduler
from kvproof.reference.sequence import Sequence
from kvproof.spec.errors import GeometryError, KvproofError
from kvproof.spec.geometry import Geometry, Kind
from kvproof.spec.lineage import Forest
from kvproof.spec.records import Config, Event, Extras, Load, Policy, Request, Step

PLAIN = Extras()


class Engine:
    """One engine with an empty pool.

    fault: name of a planted fault, see `faults`. journal: whether to keep the journal of operations. Raises GeometryError
    where one request of `max_model_len` tokens could fail for want of blocks though it is alone.
    """

    def __init__(self, config: Config, fault: str | None = None, *, journal: bool = False) -> None:
        least = least_pool(config)
        if config.geometry.num_blocks < least:
            raise GeometryError(
                f"num_blocks {config.geometry.num_blocks} may not hold one request of max_model_len "
                f"{config.max_model_len}: use at least {least}"
            )
        self.config = config
        self.scheduler = Scheduler(config, journal=journal)
        self.forest = Forest()
        self.arrivals = 0
        if fault is not None:
            plant(self, fault)

    # ---------------------------------------------------------------------------------------------------- requests

    def add(self, request: Request, extras: Extras = PLAIN, *, eos: int | None = None) -> None:
        """A request arrives, with what a connector or a drafter has for it. eos: a token that ends it early.

        Raises GeometryError where it cannot be served: it is empty, too long, asks for no token, its id is in use, or its
        extras do not fit the configuration.
        """
        self._check(request, extras)
        self.arrivals += 1
        limit = min(len(request.prompt) + request.max_tokens, self.config.max_model_len)
        rank = (request.priority if self.config.policy is Policy.PRIORITY else 0, self.arrivals)
        sequence = Sequence(request, self.forest.root(request.salt), self.config.geometry, limit, rank, extras, eos)
        self.scheduler.sequences[request.id] = sequence
        self.scheduler.waiting.push(sequence)

    def _check(self, request: Request, extras: Extras) -> None:
        config = self.config
        if not 0 < len(request.prompt) < config.max_model_len or request.max_tokens < 1:
            raise GeometryError(
                f"{request.id}: {len(request.prompt)} prompt tokens, {request.max_tokens} to sample: both must be positive "
                f"and the prompt shorter than max_model_len {config.max_model_len}"
            )
        if request.id in self.scheduler.sequences or request.id in self.scheduler.connector.loading:
            raise GeometryError(f"{request.id} is in use: wait until that request has ended")
        if extras.drafts and (config.geometry.states or config.depth > 1):
            raise GeometryError(f"{request.id}: drafts need a geometry without states and depth 1: a state cannot roll back")
        if extras.outside and not extras.ordered and config.depth > 1 and not config.fences:
            raise GeometryError(f"{request.id}: a load beside steps in flight needs fences: order it with its step")

    def abort(self, request_id: str) -> None:
        """A client went away. Unknown ids are ignored: the request may have ended a moment before."""
        sequence = self.scheduler.sequences.get(request_id)
        if sequence is not None:
            self.scheduler.end(sequence)

    # ------------------------------------------------------------------------------------------------------- steps

    def schedule(self) -> Step:
        """One iteration; issued when this returns, unless it has neither rows nor copies."""
        if len(self.scheduler.flights) >= self.config.depth:
            raise KvproofError(f"{self.config.depth} steps are in flight, the depth of the pipeline: complete one first")
        return self.scheduler.schedule()

    def complete(
        self, step: Step, tokens: Mapping[str, int | Listing[int]], failed: Listing[str] = ()
    ) -> tuple[list[str], dict[str, list[int]]]:
        """The oldest step in flight is done.

        tokens: the sample of each row that samples; a list where drafts were tried, the accepted ones and one more.
        failed: requests whose load was part of this step and failed. Returns the requests that ended with it, and the
        tokens that were accepted. Nothing for a step that was not issued.
        """
        if not step.issued:
            return [], {}
        return self.scheduler.complete(step.number, tokens, failed)

    # --------------------------------------------------------------------------------------------------- connector

    def loads(self) -> list[Load]:
        """Loads beside the steps that began since the last call, for who carries them out. Others are in their step."""
        return self.scheduler.connector.take_begun()

    def end_load(self, request_id: str, succeeded: bool) -> None:
        """A load beside the steps is over. Raises KvproofError where none runs for this request."""
        self.scheduler.connector.end(request_id, succeeded)

    def saves(self) -> list[int]:
        """Numbers of the jobs that save the blocks of finished requests."""
        return list(self.scheduler.connector.saves)

    def end_save(self, job: int) -> None:
        """A save is done. Raises KvproofError where no such job runs."""
        self.scheduler.connector.end_save(job)

    # ------------------------------------------------------------------------------------------------------- cache

    def reset_cache(self) -> bool:
        self.scheduler.reset_cache()
        return True

    def busy(self) -> bool:
        return bool(self.scheduler.sequences)

    # ------------------------------------------------------------------------------------------------- observation

    def events(self) -> list[Event]:
        """KV events since the last call."""
        return self.scheduler.event_log.drain()

    def journal(self) -> list[Entry]:
        """Operations since the last call; none where the engine was not asked to keep them."""
        return self.scheduler.journal.drain()


def least_pool(config: Config) -> int:
    """Blocks with which a request of `max_model_len` tokens is served if it is alone, the null block included.

    Append-only: its table, and the source of a copy. State: the hit or the running state, a copy, the next slot, and a
    checkpoint where the group exports one.
    """
    return 1 + sum(blocks_at_most(config.geometry, config.max_model_len))


def blocks_at_most(geometry: Geometry, length: int) -> list[int]:
    return [
        group.blocks_for(length) + 1 if group.kind is Kind.APPEND_ONLY else 3 + group.checkpoint for group in geometry.groups
    ]
