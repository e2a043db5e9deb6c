"""Everything that can happen to a KV-cache block. Each rule is written here once, and both run and proved.

Each action walks five stations in this order: *who may* (its guards, each with a name), *reads* (snapshots), *writes* (all
else stays as it is), *says* (what an event stream tells), *seen in* (vLLM's file and function; `vllm/v1/core` is left out).
All choices are parameters: there is no search and no loop over the state inside an action.

The order of calls between two `issue` need not be the order on the device: the device zeroes, then loads and copies, then
runs the forward pass. `before`, `mid` and `after` are kept in device order whatever the call order.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from kvproof.spec.lineage import Content, Key
from kvproof.spec.logic import Term, answers, both, choose, covers, either, every, extends, negate, none, some
from kvproof.spec.state import Block, Holder, Owner, State


@dataclass(frozen=True, slots=True)
class Action:
    """A registered action: its function, and the names of its parameters after the state."""

    name: str
    apply: Callable[..., None]
    parameters: tuple[str, ...]

    @property
    def guards(self) -> tuple[str, ...]:
        """The names of its guards, in the order in which they are asked."""
        return _guards(self.apply)


ACTIONS: dict[str, Action] = {}

# Guards that no clause misses: they keep what the model says the same as what the device does, whatever the order of calls.
DEVICE_ORDER = (
    "nothing else filled it",
    "the forward pass comes later",
    "it is not the source of a copy",
    "the step does not load the source",
    "no staged copy reads or writes it",
)


def action(function: Callable[..., None]) -> Callable[..., None]:
    names = tuple(inspect.signature(function).parameters)[1:]
    ACTIONS[function.__name__] = Action(function.__name__, function, names)
    return function


@cache
def _guards(function: Callable[..., None]) -> tuple[str, ...]:
    """Guard names read off the source of an action and of the helpers of this module that it calls."""
    found: list[str] = []
    for node in ast.walk(ast.parse(inspect.getsource(function))):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr == "require" and isinstance(node.args[0], ast.Constant):
            found.append(str(node.args[0].value))
        elif isinstance(node.func, ast.Name) and node.func.id.startswith("_may_"):
            found += _guards(globals()[node.func.id])
    return tuple(dict.fromkeys(found))


# ---------------------------------------------------------------------------------------------------- owners and holders


@action
def start(state: State, owner: Owner) -> None:
    """An owner is born: a request is admitted to the engine, a connector job begins.

    Seen in: Scheduler.add_request (sched/scheduler.py).
    """
    state.alive[owner] = True


@action
def finish(state: State, owner: Owner) -> None:
    """An owner dies. It holds nothing but fences.

    Seen in: Scheduler._free_request (sched/scheduler.py).
    """
    mine = state.belongs.at(owner)
    state.require("it holds nothing but fences", every(mine, lambda h: either(state.fenced[h], lambda: state.unused(h))))
    state.alive[owner] = False


@action
def acquire(state: State, holder: Holder, block: Block, owner: Owner) -> None:
    """A free block gets its first holder and forgets what it was cached for.

    Says: Removed for each key that goes.
    Seen in: BlockPool.get_new_blocks (block_pool.py).
    """
    state.require("the block is free", state.free(block))
    _may_hold(state, holder, owner)
    _hold(state, holder, block)
    state.belongs.set_of(holder, owner)
    state.fenced[holder] = False
    state.keyed.clear_at(block)
    state.staged_key.clear_at(block)
    state.retired.clear_at(block)


@action
def share(state: State, holder: Holder, block: Block, key: Key, need: Key, owner: Owner) -> None:
    """A prefix hit: one more reason not to reuse this block. The reader relies on `need`, which `key` covers.

    Seen in: BlockPool.touch (block_pool.py).
    """
    state.require("the block answers the key", state.keyed[key, block])
    state.require("the key covers the need", covers(key, need))
    _may_hold(state, holder, owner)
    _hold(state, holder, block)
    state.belongs.set_of(holder, owner)
    state.fenced[holder] = False
    state.needs.add(holder, need)


@action
def pin(state: State, holder: Holder, block: Block, until: int) -> None:
    """A block gets a fence that ends with step `until`: an endpoint of a copy.

    Seen in: SingleTypeKVCacheManager._apply_cow, MambaManager.allocate_new_blocks (`ref_cnt += 1`).
    """
    state.require("the block is not null", block != state.null)
    state.require("the holder holds nothing yet", state.unused(holder))
    state.require("the fence is a step that exists", until <= state.staging)
    _hold(state, holder, block)
    state.fenced[holder] = True
    state.fence[holder] = until


@action
def release(state: State, holder: Holder, block: Block) -> None:
    """A holder ends at once. What the device still uses stays held by somebody else, or lies behind the horizon.

    Seen in: BlockPool.free_blocks through KVCacheManager.free, remove_skipped_blocks.
    """
    _may_leave(state, holder, block)
    used = state.last_use[block]
    state.require("what is in use stays held", either(used <= state.horizon, lambda: _covered(state, holder, block, used)))
    _end(state, holder, block)


@action
def defer(state: State, holder: Holder, block: Block, until: int) -> None:
    """A holder becomes a fence that ends with step `until`: not before the last use, unless another holder lasts till then.

    Seen in: Scheduler._free_request_blocks, _free_cow_retained_blocks (`deferred_frees`).
    """
    _may_leave(state, holder, block)
    used = state.last_use[block]
    state.require("the fence reaches the last use", either(until >= used, lambda: _covered(state, holder, block, used)))
    state.require("the fence is a step that exists", until <= state.staging)
    state.fenced[holder] = True
    state.fence[holder] = until
    state.needs.clear_of(holder)
    state.reads.clear_of(holder)


@action
def expire(state: State, holder: Holder, block: Block) -> None:
    """A fence behind the horizon ends.

    Seen in: Scheduler._drain_deferred_frees; at once for copy endpoints where frees are not deferred.
    """
    state.require("the holder is a fence on the block", both(state.holds[holder, block], lambda: state.fenced[holder]))
    state.require("the fence is behind the horizon", state.fence[holder] <= state.horizon)
    _end(state, holder, block)


@action
def hand_over(state: State, holder: Holder, owner: Owner) -> None:
    """A holder changes owner: a request is over, a connector goes on saving its blocks.

    Seen in: Scheduler._connector_finished (delayed free).
    """
    state.require("the new owner is alive", state.alive[owner])
    state.belongs.set_of(holder, owner)


@action
def forget(state: State, holder: Holder, need: Key) -> None:
    """A holder stops relying on a lineage: its drafts were rejected, or it ends before the load it waited for.

    Seen in: Scheduler.update_from_output (rejected tokens lower num_computed_tokens).
    """
    state.needs.remove(holder, need)


# ------------------------------------------------------------------------------------------------------------------- keys


@action
def publish(state: State, block: Block, key: Key) -> None:
    """A block gets a key, full or partial, which its content will answer when the staged step is done.

    Says: Stored.
    Seen in: BlockPool.cache_full_blocks, cache_partial_block.
    """
    _may_publish(state, block, key)
    fresh = negate(state.keyed[key, block])
    state.keyed.add(key, block)
    state.staged_key.add_if(fresh, key, block)


@action
def promote(state: State, block: Block, key: Key) -> None:
    """A longer key replaces the shorter ones of the block, which are retired: they never come back to it.

    Says: Removed for each key that goes, then Stored.
    Seen in: BlockPool.cache_full_blocks, cache_partial_block on a block that has a hash.
    """
    _may_publish(state, block, key)
    fresh = negate(state.keyed[key, block])
    state.retired.copy_at(state.keyed, block, block, key)
    state.keyed.clear_at(block)
    state.keyed.add(key, block)
    state.staged_key.add_if(fresh, key, block)


@action
def retract(state: State, block: Block, key: Key) -> None:
    """A key goes: evicted, reset, or its writer was cancelled or failed.

    Says: Removed; one Cleared where all go.
    Seen in: BlockPool._remove_cached_block_hashes, evict_blocks, reset_prefix_cache.
    """
    state.keyed.remove(key, block)
    state.staged_key.remove(key, block)


# ----------------------------------------------------------------------------------------------------------------- copies


@action
def redirect(state: State, slot: Holder, source: Block, private: Holder, target: Block) -> None:
    """Consumer copy-on-write: a table slot leaves a shared block for a private copy and takes its need along.

    The slot's hold on the source becomes the fence that keeps the source until the copy ran.

    Seen in: SingleTypeKVCacheManager._apply_cow.
    """
    found = choose(state.zeroed[source], state.zero, state.before[source])
    _may_copy(state, source, target, found)
    state.require("both slots are live", both(state.live(slot, source), lambda: state.live(private, target)))
    state.require("the source is ready", every(state.needs.of(slot), lambda need: answers(found, need)))
    staging = state.staging
    _copy(state, source, target, found, staging)
    state.needs.hand_of(slot, private)
    state.fenced[slot] = True
    state.fence[slot] = staging


@action
def move(state: State, source: Block, target: Block) -> None:
    """Producer copy-on-write: all keys of a block go to a copy; the running owner goes on writing the source.

    Says: nothing: the keys stay resident.
    Seen in: BlockPool.move_block_hashes, MambaManager.allocate_new_blocks.
    """
    found = choose(state.zeroed[source], state.zero, state.before[source])
    _may_copy(state, source, target, found)
    state.require("the source is pinned", state.pinned(source))
    state.require("the source is ready", state.keys_answered(source, found))
    staging = state.staging
    _copy(state, source, target, found, staging)
    state.staged_key.clear_at(source)
    state.staged_key.copy_at(state.keyed, source, target)
    state.keyed.hand_at(source, target)
    state.retired.clear_at(target)


# ------------------------------------------------------------------------------------------- the step that is being staged


@action
def stage_zero(state: State, block: Block) -> None:
    """The block is cleared before the copies and the forward pass.

    Seen in: KVCacheManager.take_new_block_ids, SchedulerOutput.new_block_ids_to_zero.
    """
    staging = state.staging
    state.require("somebody holds the block", some(state.holds.at(block), lambda h: state.reaches(h, staging)))
    state.require("it is not the source of a copy", negate(state.source[block]))
    _may_fill(state, block, state.zero)
    state.zeroed[block] = True
    state.mid[block] = state.zero
    state.after[block] = state.zero
    state.last_use[block] = staging


@action
def stage_write(state: State, holder: Holder, block: Block, content: Content, need: Key) -> None:
    """The forward pass leaves `content` in the block; the writer relies on `need` of it from now on.

    Rows that only grow keep everybody's bytes, so an append-only block may be shared while it is written; a state may not.
    A checkpoint is such a write too: the state at an inner boundary of the chunk, exported to a block of its own.

    Seen in: the model runner's forward pass; MambaSpec.num_prefill_checkpoint_blocks for exported states.
    """
    _may_use(state, holder, block)

    def grows() -> Term:
        return extends(content, state.after[block])

    state.require("keys stay true", either(state.keys_answered(block, content), grows))
    state.require("other holders keep their bytes", either(state.others_answered(block, content, holder), grows))
    state.require("the writer gets what it relies on", answers(content, need))
    staging = state.staging
    state.after[block] = content
    state.written[block] = True
    state.last_use[block] = staging
    state.needs.set_of(holder, need)


@action
def stage_read(state: State, holder: Holder, block: Block) -> None:
    """The forward pass reads rows. Every layer writes the step's rows before attention reads, so a reader sees `after`.

    Seen in: attention over the block table.
    """
    _may_use(state, holder, block)
    state.last_use[block] = state.staging


@action
def stage_read_state(state: State, holder: Holder, block: Block, key: Key) -> None:
    """The forward pass starts from a state, which must be there before the pass: a step's states are written at its end.

    Seen in: the align-mode pre-copy of the model runner (state of the previous slot, or of the hit).
    """
    _may_use(state, holder, block)
    state.require("the state is there before the forward pass", answers(state.mid[block], key))
    state.reads.add(holder, key)
    state.last_use[block] = state.staging


@action
def stage_load(state: State, holder: Holder, block: Block, content: Content, need: Key) -> None:
    """An outside write that is ordered with the step: it fills the block before the forward pass.

    Seen in: KVConnectorBase_V1.start_load_kv with wait_for_layer_load (synchronous connectors).
    """
    state.require("the holder is live on the block", state.live(holder, block))
    state.require("it is not the source of a copy", negate(state.source[block]))
    _may_fill(state, block, content)
    state.require("the loader gets what it relies on", answers(content, need))
    staging = state.staging
    state.loaded[block] = True
    state.mid[block] = content
    state.after[block] = content
    state.last_use[block] = staging
    state.needs.set_of(holder, need)


@action
def cancel(state: State, holder: Holder, block: Block) -> None:
    """A staged forward read or write is withdrawn before the step is issued: its request was preempted in its own step.

    Keys that were published on credit of the write have gone before, and nobody else relies on it.

    Seen in: Scheduler.schedule, priority policy, where the victim was scheduled earlier in the same step.
    """
    kept = state.mid[block]
    state.require("keys stay true", state.keys_answered(block, kept))
    state.require("other holders keep their bytes", state.others_answered(block, kept, holder))
    alone = every(state.holds.at(block), lambda h: either(h == holder, both(state.fenced[h], none(state.reads.of(h)))))
    moved = either(state.copied[block], state.source[block], state.loaded[block])
    cleared = both(state.zeroed[block], state.unordered)
    quiet = both(alone, negate(moved), negate(cleared))
    used = choose(quiet, state.used_before[block], state.last_use[block])
    state.after[block] = kept
    state.written[block] = False
    state.last_use[block] = used
    state.needs.clear_of(holder)
    state.reads.clear_of(holder)


# ---------------------------------------------------------------------------------------------------------- outside writes


@action
def begin_load(state: State, holder: Holder, block: Block, junk: Content) -> None:
    """An outside write starts that is not ordered with the steps. The block holds `junk` while it runs.

    Seen in: Scheduler.schedule with load_kv_async; the request waits for remote KV.
    """
    state.require("the holder is live on the block", state.live(holder, block))
    state.require(
        "no step in flight or staged touches it",
        both(state.last_use[block] <= state.completed, negate(state.zeroed[block])),
    )
    state.require("it has no keys", none(state.keyed.at(block)))
    state.require("nobody relies on it", every(state.holds.at(block), lambda h: none(state.needs.of(h))))
    state.loading.add(holder, block)
    _overwrite(state, block, junk)


@action
def end_load(state: State, holder: Holder, block: Block, content: Content, need: Key) -> None:
    """The outside write is done; its holder relies on `need` from now on.

    Seen in: Scheduler._update_waiting_for_remote_kv.
    """
    state.require("the holder loads the block", state.loading[holder, block])
    state.require("it is the only load", every(state.loads(block), lambda h: h == holder))
    state.require("the loader gets what it relies on", answers(content, need))
    state.loading.remove(holder, block)
    _overwrite(state, block, content)
    state.needs.set_of(holder, need)


@action
def spoil(state: State, block: Block, junk: Content) -> None:
    """A load turned out to have failed: content, keys and needs go; so do those of each block computed from it.

    Says: Removed for each key that goes.
    Seen in: Scheduler._handle_invalid_blocks, BlockPool.evict_blocks.
    """
    state.require("no staged copy reads or writes it", negate(either(state.source[block], state.copied[block])))
    readers = state.holds.at(block)
    state.needs.clear_of_each(readers)
    state.reads.clear_of_each(readers)
    state.loading.clear_at(block)
    state.keyed.clear_at(block)
    state.staged_key.clear_at(block)
    _overwrite(state, block, junk)


# ------------------------------------------------------------------------------------------------------------------- clock


@action
def issue(state: State) -> None:
    """The staged step leaves for the device. What it leaves behind is what the next step starts from.

    Seen in: the executor's execute_model after Scheduler.schedule.
    """
    staging = state.staging
    state.last_use.set_each(state.zeroed, staging)
    state.last_use.sink()
    state.after.sink()
    for flags in (state.zeroed, state.copied, state.source, state.loaded, state.written):
        flags.clear()
    state.staged_key.clear()
    state.reads.clear()
    state.issued = staging


@action
def complete(state: State) -> None:
    """The results of the oldest step in flight are in.

    Seen in: Scheduler.update_from_output.
    """
    state.require("a step is in flight", state.completed < state.issued)
    state.completed = state.completed + 1


# ----------------------------------------------------------------------------------------- what several actions have in common


def _may_hold(state: State, holder: Holder, owner: Owner) -> None:
    state.require("the holder holds nothing yet", state.unused(holder))
    state.require("its owner is alive", state.alive[owner])


def _may_leave(state: State, holder: Holder, block: Block) -> None:
    state.require("the holder is live on the block", state.live(holder, block))
    state.require("it does not load the block", negate(state.loading[holder, block]))


def _covered(state: State, holder: Holder, block: Block, used: int) -> Term:
    """Whether another holder of the block lasts until it was used."""
    return some(state.holds.at(block), lambda h: both(h != holder, lambda: state.reaches(h, used)))


def _may_publish(state: State, block: Block, key: Key) -> None:
    state.require("the block is not null", block != state.null)
    state.require("the content answers the key when the step is done", answers(state.after[block], key))
    state.require("no load is under way", none(state.loads(block)))
    state.require("the key was not retired from it", negate(state.retired[key, block]))


def _may_use(state: State, holder: Holder, block: Block) -> None:
    state.require("the holder is live on the block", state.live(holder, block))
    state.require("no load is under way", none(state.loads(block)))


def _may_fill(state: State, block: Block, content: Content) -> None:
    """Before the forward pass, and only where nobody reads."""
    state.require("nothing else filled it", negate(either(state.copied[block], state.loaded[block])))
    state.require("the forward pass comes later", negate(state.written[block]))
    state.require("no load is under way", none(state.loads(block)))
    state.require("keys stay true", state.keys_answered(block, content))
    state.require("nobody loses bytes", state.needs_answered(block, content))
    state.require("no staged read loses its state", state.reads_answered(block, content))


def _may_copy(state: State, source: Block, target: Block, found: Content) -> None:
    state.require("no load runs on the source", none(state.loads(source)))
    state.require("the step does not load the source", negate(state.loaded[source]))
    state.require("the target is pinned", state.pinned(target))
    _may_fill(state, target, found)


def _hold(state: State, holder: Holder, block: Block) -> None:
    """A holder is born: what an earlier life of it left behind is gone."""
    state.holds.add(holder, block)
    state.needs.clear_of(holder)
    state.reads.clear_of(holder)


def _end(state: State, holder: Holder, block: Block) -> None:
    state.holds.remove(holder, block)
    state.belongs.clear_of(holder)
    state.needs.clear_of(holder)
    state.reads.clear_of(holder)


def _copy(state: State, source: Block, target: Block, found: Content, staging: int) -> None:
    state.mid[target] = found
    state.after[target] = found
    state.copied[target] = True
    state.source[source] = True
    state.last_use[source] = staging
    state.last_use[target] = staging


def _overwrite(state: State, block: Block, content: Content) -> None:
    """Content changes under all steps at once: only where none of them touches the block."""
    state.before[block] = content
    state.mid[block] = content
    state.after[block] = content
