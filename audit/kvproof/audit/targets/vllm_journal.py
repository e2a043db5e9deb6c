"""The inside view of a vLLM scheduler: what it does to its block pool, operation by operation, and the whole pool at once.

A `Journal` wraps methods of one scheduler, its KV-cache manager and its block pool (vllm/v1/core/sched/scheduler.py,
kv_cache_manager.py, kv_cache_coordinator.py, block_pool.py). Wrappers of the pool note which blocks were touched; wrappers
of the manager and the scheduler close an `Op` with what these blocks look like then. Nothing is proportional to the pool
except `observe` and the operation that empties the cache, which is so in vLLM too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from inspect import Parameter, signature
from types import CodeType
from typing import Any

from kvproof.audit.target import Observation, Op, OpKind
from kvproof.audit.targets.vllm_build import Vllm, hash_name
from kvproof.audit.targets.vllm_view import Entry, PoolView

_SCHEDULER_COLLECTIONS = (
    "running",
    "waiting",
    "skipped_waiting",
    "kv_holding_waiting",
    "deferred_waiting",
    "_inflight_prefills",
    "finished_recving_kv_req_ids",
    "failed_recving_kv_req_ids",
    "deferred_loads",
    "grammar_compile_error_reqs",
    "encoder_cache_mismatch_reqs",
)


_ALLOCATE, _FREE, _COPIES_OUT = OpKind.ALLOCATE, OpKind.FREE, OpKind.COPIES_OUT  # the enum is slow to ask
_DRAIN, _RESET, _OTHER = OpKind.DRAIN, OpKind.RESET, OpKind.OTHER


class Journal:
    """Writes down what `scheduler` does from now on. client_name: the client's name of a request id inside the engine."""

    def __init__(self, vllm: Vllm, scheduler: Any, client_name: Callable[[str], str]) -> None:
        self._scheduler = scheduler
        self._manager = scheduler.kv_cache_manager
        self._pool = self._manager.block_pool
        self._managers: tuple[Any, ...] = tuple(self._manager.coordinator.single_type_managers)
        self._name = client_name
        self._view = PoolView(self._pool, hash_name(vllm))
        self._ops: list[Op] = []
        self._taken: list[Any] = []
        self._hits: list[Any] = []
        self._dropped: list[Any] = []
        self._keyed: list[tuple[int, list[Entry]]] = []  # block ids that got a key, each with all of them right then
        self._bared: set[int] = set()  # block ids that lost a key and got none since
        self._demand: int | None = None
        self._copies_seen: list[tuple[Any, int]] = [(None, 0)] * len(self._managers)
        self._deferred_seen = 0
        self._wrap_acquisition()
        self._wrap_index()
        self._wrap_allocation()
        self._wrap_eviction()
        self._wrap_releases()

    def drain(self) -> list[Op]:
        """Operations since the last call, in order. Fences are sequence numbers of the scheduler."""
        self._begin()
        ops, self._ops = self._ops, []
        return ops

    def observe(self) -> Observation:
        """The whole pool. Fences are sequence numbers of the scheduler."""
        view = self._view
        return Observation(
            refs=view.refs(),
            free_queue=view.free_queue(),
            index=view.index(),
            tables=self._tables(),
            pending_copies=[
                (source.block_id, target.block_id)
                for manager in self._managers
                for source, target in manager._pending_cow_copies
            ],
            deferred=[(fence, [block.block_id for block in blocks]) for fence, blocks in self._scheduler.deferred_frees],
            leftovers=self._leftovers(),
            reverse=view.reverse(),
        )

    # Wrappers of the pool: what was touched.

    def _wrap_acquisition(self) -> None:
        pool, taken, hits, dropped, bared = self._pool, self._taken, self._hits, self._dropped, self._bared
        more_keys = pool.cached_block_hashes_by_block
        get_new_blocks, touch, free_blocks = pool.get_new_blocks, pool.touch, pool.free_blocks

        def on_get_new_blocks(num_blocks: int) -> Any:
            blocks = get_new_blocks(num_blocks)
            taken.extend(blocks)
            for block in blocks:
                if block._block_hash is not None or block.block_id in more_keys:
                    bared.add(block.block_id)  # it should have lost them: see what it has then
            return blocks

        def on_touch(blocks: Any) -> None:
            touch(blocks)
            hits.extend(blocks)

        def on_free_blocks(ordered_blocks: Iterable[Any]) -> None:
            blocks = list(ordered_blocks)
            free_blocks(blocks)
            dropped.extend(blocks)

        pool.get_new_blocks, pool.touch, pool.free_blocks = on_get_new_blocks, on_touch, on_free_blocks

    def _wrap_index(self) -> None:
        """Of the map from hashes to blocks, which is another one after each reset."""
        index, keyed, bared, keys = self._pool.cached_block_hash_to_block, self._keyed, self._bared, self._view.keys
        insert, pop = index.insert, index.pop

        def on_insert(key: bytes, block: Any) -> None:
            insert(key, block)
            block_id = block.block_id
            keyed.append((block_id, keys(block)))
            bared.discard(block_id)

        def on_pop(key: bytes, block_id: int) -> Any:
            bared.add(block_id)
            return pop(key, block_id)

        index.insert, index.pop = on_insert, on_pop

    # Wrappers of the manager and the scheduler: one operation each.

    def _wrap_allocation(self) -> None:
        manager, coordinator, pool = self._manager, self._manager.coordinator, self._pool
        allocate_slots, estimate = manager.allocate_slots, coordinator.get_num_blocks_to_allocate
        cache_blocks = manager.cache_blocks

        def after_estimate(demand: int, apply_admission_cap: bool) -> None:
            if not apply_admission_cap:
                self._demand = demand

        def after_allocation(
            blocks: Any,
            request: Any,
            num_new_tokens: int,
            num_new_computed_tokens: int,
            num_external_computed_tokens: int,
        ) -> None:
            start = request.num_computed_tokens + num_new_computed_tokens + num_external_computed_tokens
            name = self._name(request.request_id)
            op = Op(_ALLOCATE, name, start, start + num_new_tokens, num_new_computed_tokens, blocks is None)
            if self._demand is not None and self._demand <= pool.num_gpu_blocks:
                op.demand = self._demand  # more than the pool has means "not in this step", see MambaManager
            if self._taken or self._hits or self._dropped:
                op.tables = {name: self._table(request.request_id)}
                op.copies = self._new_copies()  # each has a target that was just taken
            self._close(op)

        def on_cache_blocks(request: Any, num_computed_tokens: int) -> None:
            self._begin()
            cache_blocks(request, num_computed_tokens)
            if self._touched():
                self._close(Op(_OTHER, self._name(request.request_id)))

        coordinator.get_num_blocks_to_allocate = _followed(estimate, after_estimate)
        manager.allocate_slots = _followed(allocate_slots, after_allocation, self._begin)
        manager.cache_blocks = on_cache_blocks

    def _wrap_eviction(self) -> None:
        manager = self._manager
        evict_blocks, reset_prefix_cache = manager.evict_blocks, manager.reset_prefix_cache

        def on_evict_blocks(block_ids: Any) -> None:
            self._begin()
            evict_blocks(block_ids)
            self._close(Op(_OTHER))

        def on_reset_prefix_cache() -> bool:
            self._begin()
            keyed = self._view.index().values()
            done: bool = reset_prefix_cache()
            self._bared.update(block_id for ids in keyed for block_id in ids)
            self._close(Op(_RESET, failed=not done))
            if done:
                self._wrap_index()
            return done

        manager.evict_blocks, manager.reset_prefix_cache = on_evict_blocks, on_reset_prefix_cache

    def _wrap_releases(self) -> None:
        scheduler = self._scheduler
        free_request, free_copies = scheduler._free_request_blocks, scheduler._free_cow_retained_blocks
        drain_deferred = scheduler._drain_deferred_frees

        def on_free_request_blocks(request: Any) -> None:
            self._begin()
            held = any(manager.req_to_blocks.get(request.request_id) for manager in self._managers)
            free_request(request)
            if held or self._touched():
                name = self._name(request.request_id)
                self._close(Op(_FREE, name, tables={name: self._table(request.request_id)}))

        def on_free_cow_retained_blocks(blocks: Any, fence_seq: int) -> None:
            self._begin()
            free_copies(blocks, fence_seq)
            self._close(Op(_COPIES_OUT))

        def on_drain_deferred_frees() -> None:
            if not scheduler.deferred_frees:
                drain_deferred()
                return
            self._begin()
            drain_deferred()
            self._deferred_seen = len(scheduler.deferred_frees)
            if self._touched():
                self._close(Op(_DRAIN))

        scheduler._free_request_blocks = on_free_request_blocks
        scheduler._free_cow_retained_blocks = on_free_cow_retained_blocks
        scheduler._drain_deferred_frees = on_drain_deferred_frees

    # Operations.

    def _touched(self) -> bool:
        return bool(self._taken or self._hits or self._dropped or self._keyed or self._bared)

    def _begin(self) -> None:
        """What was touched outside of any operation that we know becomes one of its own."""
        if self._touched():
            self._close(Op(_OTHER))
        self._demand = None

    def _close(self, op: Op) -> None:
        """Complete an operation with what was touched during it, and forget that."""
        if self._taken or self._hits or self._dropped:
            op.refs = refs = {block: self._pool.blocks[block].ref_cnt for pair in op.copies for block in pair}
            if self._taken:
                op.taken = _note(self._taken, refs)
            if self._hits:
                op.hits = _note(self._hits, refs)
            if self._dropped:
                op.dropped = _note(self._dropped, refs)
        if self._bared:
            self._keyed += [(block_id, self._view.keys(self._pool.blocks[block_id])) for block_id in sorted(self._bared)]
            self._bared.clear()
        if self._keyed:
            op.keys = self._keyed.copy()
            self._keyed.clear()
        deferred = self._scheduler.deferred_frees
        if self._deferred_seen < len(deferred):
            new = [deferred[position] for position in range(self._deferred_seen, len(deferred))]
            op.deferred = [(fence, [block.block_id for block in blocks]) for fence, blocks in new]
            self._deferred_seen = len(deferred)
        op.free_blocks = self._pool.free_block_queue.num_free_blocks
        self._ops.append(op)

    def _new_copies(self) -> list[tuple[int, int]]:
        """Copies staged since the last look. A manager starts a new list when the scheduler takes the old one."""
        copies: list[tuple[int, int]] = []
        for index, manager in enumerate(self._managers):
            pending = manager._pending_cow_copies
            if not pending:
                continue
            known, seen = self._copies_seen[index]
            if pending is not known:
                seen = 0
            copies += [(source.block_id, target.block_id) for source, target in pending[seen:]]
            self._copies_seen[index] = (pending, len(pending))
        return copies

    # Requests.

    def _table(self, request_id: str) -> list[list[int]] | None:
        table = [[block.block_id for block in manager.req_to_blocks.get(request_id, ())] for manager in self._managers]
        return table if any(table) else None

    def _tables(self) -> dict[str, list[list[int]]]:
        ids = dict.fromkeys(request_id for manager in self._managers for request_id in manager.req_to_blocks)
        tables = {self._name(request_id): self._table(request_id) for request_id in ids}
        return {name: table for name, table in tables.items() if table is not None}

    def _leftovers(self) -> dict[str, list[str]]:
        """Requests that per-request maps still mention though the scheduler does not know them any more."""
        places: list[tuple[str, Any]] = [
            (f"scheduler.{attribute}", getattr(self._scheduler, attribute, ())) for attribute in _SCHEDULER_COLLECTIONS
        ]
        for manager in self._managers:
            label = f"group {manager.kv_cache_group_id}"
            places += [(f"{label}.{attribute}", value) for attribute, value in vars(manager).items()]
        found: dict[str, list[str]] = {}
        for place, value in places:
            stale = {request_id for request_id in _mentions(value) if request_id not in self._scheduler.requests}
            if stale:
                found[place] = sorted(map(self._name, stale))
        return found


def _followed(inner: Callable[..., Any], after: Callable[..., None], before: Callable[[], Any] | None = None) -> Any:
    """`before`, `inner`, and then `after` with its result and those arguments of `inner` that it names.

    Spelled out with the parameters of `inner`: to pass on *args and **options costs more than all that is noted.
    """
    given, wanted = (tuple(signature(function).parameters) for function in (inner, after))
    defaults = [value.default for value in signature(inner).parameters.values() if value.default is not Parameter.empty]
    known: dict[str, Any] = {"__name__": __name__}
    exec(_spelled(given, len(defaults), wanted[1:], before is not None), known)
    return known["bound"](inner, after, before, defaults)


@cache
def _spelled(given: tuple[str, ...], defaults: int, wanted: tuple[str, ...], begun: bool) -> CodeType:
    must = len(given) - defaults
    told = [*given[:must], *(f"{name}=defaults[{place}]" for place, name in enumerate(given[must:]))]
    lines = [
        "def bound(inner, after, before, defaults):",
        f" def outer({', '.join(told)}):",
        *["  before()"] * begun,
        f"  result = inner({', '.join(given)})",
        f"  after({', '.join(['result', *wanted])})",
        "  return result",
        " return outer",
    ]
    return compile("\n".join(lines), "<journal>", "exec")


def _note(blocks: list[Any], refs: dict[int, int]) -> list[int]:
    """Ids of blocks, with their counts noted in `refs`, and none left; tables are full of null blocks, which are left out."""
    ids = []
    for block in blocks:
        if not block.is_null:
            block_id = block.block_id
            ids.append(block_id)
            refs[block_id] = block.ref_cnt
    blocks.clear()
    return ids


@cache
def _collects(kind: Any) -> bool:
    """Whether a type is one of collections other than text."""
    return issubclass(kind, Iterable) and not issubclass(kind, str | bytes)


def _mentions(value: Any) -> Iterator[str]:
    """Request ids in a collection: as keys, as elements, as requests or as the first part of a tuple."""
    for element in value if _collects(value.__class__) else ():
        first = element[0] if isinstance(element, tuple) and element else element
        request_id = first if isinstance(first, str) else getattr(first, "request_id", None)
        if isinstance(request_id, str):
            yield request_id
