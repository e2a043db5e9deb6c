"""The real vLLM scheduler as a target: requests in, steps out, the way vLLM's engine core drives it.

`schedule` builds a `Step` from nothing but the SchedulerOutput, which is all that a worker gets (vllm/v1/core/sched/output.py,
vllm/v1/worker/gpu_model_runner.py). `complete` builds the worker's answer. Steps complete in the order in which they were
scheduled, with up to `config.depth` of them in flight, as in EngineCore.step and step_with_batch_queue
(vllm/v1/engine/core.py); a step without tokens goes through update_from_output like any other.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvproof.audit.target import Hash, Observation, Op, Result, TargetCrashed
from kvproof.audit.targets.vllm_build import Requests, Vllm, hash_name, load, scheduler
from kvproof.audit.targets.vllm_checkpoints import Checkpoints
from kvproof.audit.targets.vllm_journal import Journal
from kvproof.spec.errors import GeometryError
from kvproof.spec.records import Cleared, Config, Copy, Event, Removed, Request, Row, Step, Stored


@dataclass(slots=True)
class _Flight:
    """A SchedulerOutput whose answer has not come back. `step` is None where the worker has nothing to run."""

    output: Any
    step: Step | None
    samples: dict[str, bool]


class VllmTarget:
    """A scheduler of the installed vLLM. Implements `kvproof.audit.target.Target`.

    inside: whether to show the inside view; the scheduler itself takes about a tenth longer then.
    build: makes the scheduler of a configuration; the default patches a hybrid configuration together.

    Raises `TargetUnavailable` when made where no vLLM that we know is installed, and `TargetCrashed` when vLLM raises
    during an operation; after that only `reset` is meaningful.
    """

    name = "vllm"

    def __init__(self, *, inside: bool = True, build: Callable[[Config], Any] = scheduler) -> None:
        self._vllm: Vllm = load()
        self.release = self._vllm.release
        self._inside = inside
        self._build = build
        self._aborted = self._vllm.get("request", "RequestStatus.FINISHED_ABORTED")
        self._answer = self._vllm.get("outputs", "ModelRunnerOutput")
        self._no_answer = self._vllm.get("outputs", "EMPTY_MODEL_RUNNER_OUTPUT")
        self._convert = hash_name(self._vllm)
        self._kinds = tuple(self._vllm.get("events", name) for name in ("BlockStored", "BlockRemoved"))

    def reset(self, config: Config) -> None:
        self._config = config
        self._scheduler: Any = self._build(config)
        self._requests = Requests(config.geometry.unit)
        self._sent: dict[str, Any] = {}  # vLLM's request objects, by the client's id; they outlive the request
        self._flights: deque[_Flight] = deque()
        self._issued = 0
        self._fences: list[int] = [0]  # step number by the scheduler's own count of steps with tokens
        self._raw_events: list[Any] = []
        self._inner: dict[str, str] = {}  # client's id -> id inside, where they differ
        self._client: dict[str, str] = {}
        self._checkpoints = Checkpoints.of(config.geometry, self._scheduler)
        self._journal = Journal(self._vllm, self._scheduler, self._name) if self._inside else None
        self._capture_events()

    @property
    def scheduler(self) -> Any:
        """vLLM's own scheduler, for measurements."""
        return self._scheduler

    def add(self, request: Request) -> None:
        if not request.prompt or len(request.prompt) >= self._config.max_model_len:
            raise GeometryError(
                f"request {request.id}: a prompt of {len(request.prompt)} tokens; "
                f"vLLM takes 1 to {self._config.max_model_len - 1}"
            )
        inner = self._inner_id(request.id)
        self._sent[request.id] = made = self._requests.make(request, inner)
        self._guard(self._scheduler.add_request, made)

    def abort(self, request_id: str) -> None:
        self._guard(self._scheduler.finish_requests, self._inner.get(request_id, request_id), self._aborted)

    def schedule(self) -> Step:
        output = self._guard(self._scheduler.schedule)
        step = self._step(output)
        samples = {row.request: row.samples for row in step.rows}
        if step.issued:
            self._issued += 1
            if step.rows:
                self._fences.append(self._issued)
        self._flights.append(_Flight(output, step if step.issued else None, samples))
        self._finish_empty()
        return step

    def complete(self, step: Step, tokens: Mapping[str, int]) -> Result:
        if not step.issued:
            return Result()
        flight = self._flights.popleft() if self._flights else None
        if flight is None or flight.step is not step:
            raise ValueError(f"step {step.number} is not the oldest one in flight")
        outputs = self._guard(self._scheduler.update_from_output, flight.output, self._answer_to(flight, tokens))
        result = self._result(outputs)
        self._finish_empty()
        return result

    def reset_cache(self) -> bool:
        """Empty the prefix cache and preempt what runs, as EngineCore.reset_prefix_cache does between two iterations.

        It is legal while steps are in flight: vLLM then drops the tokens that they sampled. With fences the blocks of
        steps in flight are still out, vLLM preempts, fails to reset and raises RuntimeError; the engine core answers
        its client with that error and lives on. We return False.
        """
        try:
            done: bool = self._scheduler.reset_prefix_cache(reset_running_requests=True)
        except RuntimeError:
            return False
        except Exception as error:
            raise crash(error) from error
        return done

    def busy(self) -> bool:
        busy: bool = self._scheduler.has_unfinished_requests()
        return busy

    def events(self) -> list[Event]:
        self._guard(self._scheduler.kv_cache_manager.take_events)
        raw, self._raw_events = self._raw_events, []
        return [self._event(event) for event in raw]

    def hashes(self, request_id: str, since: int = 0) -> list[Hash]:
        return [self._convert(block_hash) for block_hash in self._sent[request_id].block_hashes[since:]]

    def journal(self) -> list[Op]:
        if self._journal is None:
            return []
        ops = self._journal.drain()
        for op in ops:
            if op.deferred:
                op.deferred = [(self._fence(sequence), blocks) for sequence, blocks in op.deferred]
        return ops

    def observe(self) -> Observation | None:
        if self._journal is None:
            return None
        found = self._journal.observe()
        found.deferred = [(self._fence(sequence), blocks) for sequence, blocks in found.deferred]
        return found

    # Steps.

    def _step(self, output: Any) -> Step:
        cached = output.scheduled_cached_reqs
        rows = [
            self._row(output, new.req_id, new.num_computed_tokens, new.block_ids, True) for new in output.scheduled_new_reqs
        ]
        for request_id, start, blocks in zip(cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True):
            rows.append(self._row(output, request_id, start, blocks, request_id in cached.resumed_req_ids))
        step = Step(
            number=self._issued + 1,
            rows=rows,
            finished=sorted(map(self._name, output.finished_req_ids)),
            preempted=sorted(map(self._name, output.preempted_req_ids or ())),
            zeroes=list(output.new_block_ids_to_zero or ()),
            copies=[Copy(copy.src_block_id, copy.dst_block_id) for copy in output.kv_cache_block_copies or ()],
        )
        if self._checkpoints is not None:
            step.checkpoints = self._checkpoints.of_step(step)
        return step

    def _row(self, output: Any, request_id: str, start: int, blocks: Any, whole: bool) -> Row:
        """One request's share. `blocks` is the whole table or what was appended, None where nothing was."""
        ids = [list(group) for group in blocks] if blocks is not None else [[] for _ in self._config.geometry.groups]
        return Row(
            request=self._name(request_id),
            start=start,
            count=output.num_scheduled_tokens[request_id],
            samples=not self._scheduler.requests[request_id].is_prefill_chunk,
            table=ids if whole else None,
            appended=None if whole else ids,
        )

    def _answer_to(self, flight: _Flight, tokens: Mapping[str, int]) -> Any:
        ids = list(flight.output.num_scheduled_tokens)
        names = [self._name(request_id) for request_id in ids]
        return self._answer(
            req_ids=ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
            sampled_token_ids=[[tokens[name]] if flight.samples[name] else [] for name in names],
        )

    def _result(self, outputs: Any) -> Result:
        result = Result()
        for batch in outputs.values():
            for output in batch.outputs:
                name = self._name(output.request_id)
                if output.new_token_ids:
                    result.accepted[name] = list(output.new_token_ids)
                if output.finish_reason is not None:
                    result.finished.append(name)
        return result

    def _finish_empty(self) -> None:
        """Answer steps that the worker has nothing to do for, as soon as they are the oldest."""
        while self._flights and self._flights[0].step is None:
            self._guard(self._scheduler.update_from_output, self._flights.popleft().output, self._no_answer)

    def _fence(self, sequence: int) -> int:
        """The number of the step that ends a fence. The scheduler counts steps with tokens, from 1."""
        return self._fences[sequence] if sequence < len(self._fences) else self._issued + 1

    # Names.

    def _inner_id(self, request_id: str) -> str:
        """A name for a new request. While steps with an older request of that name are in flight it is another one.

        vLLM's front end makes all names unique (InputProcessor.assign_request_id); the scheduler relies on it while an
        answer is due.
        """
        self._inner.pop(request_id, None)
        taken = {inner for flight in self._flights for inner in flight.output.num_scheduled_tokens}
        inner, epoch = request_id, 0
        while inner in taken:
            epoch += 1
            inner = f"{request_id}+{epoch}"
        if epoch:
            self._inner[request_id], self._client[inner] = inner, request_id
        return inner

    def _name(self, inner: str) -> str:
        return self._client.get(inner, inner) if self._client else inner

    # Events and errors.

    def _capture_events(self) -> None:
        """Keep the events that update_from_output takes to hand them to a publisher (here one that drops them)."""
        manager = self._scheduler.kv_cache_manager
        take_events = manager.take_events

        def on_take_events() -> Any:
            events = take_events()
            self._raw_events.extend(events)
            return events

        manager.take_events = on_take_events

    def _event(self, event: Any) -> Event:
        stored, removed = self._kinds
        if isinstance(event, stored):
            parent = event.parent_block_hash
            return Stored(event.group_idx, tuple(event.block_hashes), parent, tuple(event.token_ids), event.block_size)
        if isinstance(event, removed):
            return Removed(event.group_idx, tuple(event.block_hashes))
        return Cleared()

    @staticmethod
    def _guard(function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
            if innermost.f_globals.get("__name__", "").startswith("kvproof."):
                raise  # a fault of our own hooks inside vLLM is not vLLM's
            raise crash(error) from error


def crash(error: Exception) -> TargetCrashed:
    """What vLLM raised, with its innermost frame in vLLM."""
    where = "?"
    for frame in traceback.extract_tb(error.__traceback__):
        _, inside, path = frame.filename.rpartition("/vllm/")
        if inside:
            where = f"vllm/{path}:{frame.name}"
    return TargetCrashed(f"{type(error).__name__}: {error} in {where}")
