"""Planted faults: named mutants of the engine, each broken at one place, to show that checks kill them.

A mutant replaces one method of one part of an engine. `FAULTS` names them all, `plant` breaks an engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kvproof.reference.events import tokens_between
from kvproof.reference.lookup import Hit
from kvproof.reference.preemption import Room
from kvproof.reference.sequence import Sequence
from kvproof.reference.staging import Share, Staging
from kvproof.spec.errors import KvproofError
from kvproof.spec.lineage import Lineage, Path
from kvproof.spec.records import Row, Step

if TYPE_CHECKING:
    from kvproof.reference.engine import Engine


@dataclass(frozen=True, slots=True)
class Planted:
    """A mutant. breaks: the check of `kvproof.audit.checks` that is about it, though others may see it first. needs: what a
    workload must have for it to show: fences, async (two steps in flight), states, fine (hits inside blocks), priority,
    abort, reset or small (a pool that is short of blocks)."""

    name: str
    breaks: str
    sentence: str
    needs: tuple[str, ...]
    plant: Callable[[Engine], None]


FAULTS: dict[str, Planted] = {}


def plant(engine: Engine, fault: str) -> None:
    """Break an engine. Raises KvproofError where no fault has this name."""
    if fault not in FAULTS:
        raise KvproofError(f"no fault is named {fault!r}: use one of {', '.join(FAULTS)}")
    FAULTS[fault].plant(engine)


def _fault(breaks: str, *needs: str) -> Callable[[Callable[[Engine], None]], Callable[[Engine], None]]:
    def register(function: Callable[[Engine], None]) -> Callable[[Engine], None]:
        name, sentence = function.__name__.strip("_"), (function.__doc__ or "").strip()
        FAULTS[name] = Planted(name, breaks, sentence, needs, function)
        return function

    return register


def _replace(part: object, method: str, replacement: Callable[..., Any]) -> None:
    """`replacement` is called with the original method before the arguments."""
    setattr(part, method, partial(replacement, getattr(part, method)))


# ------------------------------------------------------------------------------------------------- blocks and references


@_fault("used-stays-held", "fences", "async", "abort")
def free_early(engine: Engine) -> None:
    """Blocks of a request that ends return at once, though steps in flight use them and an outside writer exists."""
    _replace(engine.scheduler, "settled", lambda original, last_step: True)


@_fault("fence-drains", "fences", "async")
def fence_never_drained(engine: Engine) -> None:
    """Deferred frees are never taken up again."""
    _replace(engine.scheduler.fences, "drain", lambda original, completed: [])


@_fault("refs-are-holders", "fine")
def release_endpoint_early(engine: Engine) -> None:
    """A copy's hold on its source ends when the copy is staged."""

    def redirect(original: Callable[..., None], table: list[int], staging: Staging) -> None:
        source = table[-1]
        original(table, staging)
        staging.pins.remove(source)
        engine.scheduler.pool.drop(source)

    _replace(engine.scheduler.coordinator, "redirect", redirect)


@_fault("free-queue")
def double_free(engine: Engine) -> None:
    """The first block of each ended request is given back twice, and nobody checks the count."""
    pool = engine.scheduler.pool

    def drop(original: Callable[[int], None], block: int) -> None:
        if pool.refs[block] > 0:
            original(block)
        else:
            pool.refs[block] -= 1

    def release(original: Callable[..., None], sequence: Sequence, kind: str = "free") -> None:
        blocks = sequence.blocks()
        original(sequence, kind)
        if blocks:
            pool.drop(blocks[-1])

    _replace(pool, "drop", drop)
    _replace(engine.scheduler, "release", release)


@_fault("refs-are-holders", "abort")
def leak_after_abort(engine: Engine) -> None:
    """An aborted request keeps one block for ever."""

    def abort(original: Callable[[str], None], request_id: str) -> None:
        sequence = engine.scheduler.sequences.get(request_id)
        if sequence is not None and any(sequence.tables):
            engine.scheduler.pool.hold(sequence.blocks()[0])
        original(request_id)

    _replace(engine, "abort", abort)


@_fault("acquire-free", "fine", "small")
def evict_hit(engine: Engine) -> None:
    """The blocks of private copies are acquired before the hits are held, and may be hits."""
    pool = engine.scheduler.pool

    def admit(original: Callable[..., list[int]], sequence: Sequence, hit: Hit, staging: Staging) -> list[int]:
        inside = sum(hit.length % group.block_size > 0 for group in engine.config.geometry.groups)
        early, take = [pool.take() for _ in range(min(inside, pool.free))], pool.take
        _replace(pool, "take", lambda original: early.pop(0) if early else original())
        held = original(sequence, hit, staging)
        setattr(pool, "take", take)  # noqa: B010
        return held

    _replace(engine.scheduler.coordinator, "admit", admit)


@_fault("failure-changes-nothing", "small")
def failed_admission_holds(engine: Engine) -> None:
    """A request that is not admitted for want of blocks keeps a reference on the first block of its hit."""
    scheduler, group = engine.scheduler, engine.config.geometry.groups[0]

    def note_failed(original: Callable[..., None], sequence: Sequence, start: int, stop: int, hit: int, *rest: Any) -> None:
        found = list(scheduler.pool.find(0, sequence.path[group.block_size])) if hit >= group.block_size else []
        for block in found[:1]:
            scheduler.pool.hold(block)
        original(sequence, start, stop, hit, *rest)
        if scheduler.journal.on:
            scheduler.journal.entries[-1].hits = found[:1]

    _replace(scheduler, "note_failed", note_failed)


@_fault("demand-bounds", "fine")
def demand_one_short(engine: Engine) -> None:
    """The estimate forgets the private copy of a hit that ends inside a block."""

    def demand(original: Callable[..., int], *ask: Any) -> int:
        hit, groups = ask[3], engine.config.geometry.groups
        inside = hit is not None and any(hit.length % group.block_size for group in groups)
        return original(*ask) - inside

    _replace(engine.scheduler.coordinator, "demand", demand)


@_fault("used-stays-held", "states", "fences", "async")
def retire_scheduled(engine: Engine) -> None:
    """Old states are given up when the next chunk is scheduled, not when it is processed."""

    def retire(original: Callable[[Sequence], list[int]], sequence: Sequence) -> list[int]:
        in_flight, sequence.in_flight = sequence.in_flight, 0
        dropped = original(sequence)
        sequence.in_flight = in_flight
        return dropped

    _replace(engine.scheduler.coordinator, "retire", retire)


@_fault("preemption-frees", "fences", "async", "small")
def preempt_without_gain(engine: Engine) -> None:
    """Running requests are preempted though their blocks go behind a fence."""
    scheduler = engine.scheduler

    def make_room(original: Callable[..., Room], sequence: Sequence, stop: int, exported: int, staging: Staging) -> Room:
        room = original(sequence, stop, exported, staging)
        demand = scheduler.coordinator.demand(sequence, sequence.computed, stop, None, exported)
        return room if demand <= scheduler.pool.free else Room.SOON

    _replace(scheduler.preemption, "gives_now", lambda original, victim, staging: True)
    _replace(scheduler.preemption, "make_room", make_room)


# ------------------------------------------------------------------------------------------------------ copies and states


@_fault("source-ready", "fine")
def copy_source_not_ready(engine: Engine) -> None:
    """A hit inside a block copies a state that the same step has yet to write."""
    _trust(engine, inside=True)


@_fault("state-ready", "states")
def same_step_state_hit(engine: Engine) -> None:
    """A hit at a block boundary reads a state that the same step has yet to write."""
    _trust(engine, inside=False)


def _trust(engine: Engine, *, inside: bool) -> None:
    grid = engine.config.geometry.scheduler_block

    def find(original: Callable[..., Hit], path: Path, ready: Callable[[int, int], bool]) -> Hit:
        return original(path, lambda block, length: (length % grid != 0) is inside or ready(block, length))

    _replace(engine.scheduler.lookup, "find", find)


@_fault("needs-kept", "fine")
def skip_partial_cow(engine: Engine) -> None:
    """A hit that ends inside a block goes on writing the shared block."""
    _replace(engine.scheduler.coordinator, "redirect", lambda original, table, staging: None)


@_fault("key-true", "fine")
def skip_snapshot(engine: Engine) -> None:
    """A running state is overwritten under its names."""
    _replace(engine.scheduler.coordinator, "snapshot", lambda original, source, staging: None)


@_fault("copy-delivered", "fine")
def lost_copy(engine: Engine) -> None:
    """The last copy of a step does not reach the worker."""

    def issue(original: Callable[[Staging], Step], staging: Staging) -> Step:
        step = original(staging)
        step.copies = step.copies[:-1]
        return step

    _replace(engine.scheduler, "_issue", issue)


@_fault("null-written")
def null_block_written(engine: Engine) -> None:
    """The null block is cleared together with new blocks."""

    def issue(original: Callable[[Staging], Step], staging: Staging) -> Step:
        if staging.zeroes:
            staging.zeroes[0] = None
        return original(staging)

    _replace(engine.scheduler, "_issue", issue)


# ------------------------------------------------------------------------------------------------------- names and events


@_fault("key-true", "states")
def state_key_off_boundary(engine: Engine) -> None:
    """A chunk that ends off the grid publishes its state as that of the last unit boundary before it."""

    pool, unit = engine.scheduler.pool, engine.config.geometry.unit

    def register(
        original: Callable[..., None], sequence: Sequence, length: int, share: Share | None, exported: bool = False
    ) -> None:
        shifted = length - length % unit
        tables = [(sequence.tables[group.index], group.block_size) for group in engine.config.geometry.states]
        here = all((shifted - 1) // size == (length - 1) // size == len(table) - 1 for table, size in tables)
        fresh = not any(sequence.path[shifted] in pool.keys[table[-1]] for table, _ in tables)
        original(sequence, shifted if shifted and here and fresh else length, share, exported)

    _replace(engine.scheduler.coordinator, "register_states", register)


@_fault("retired-key", "fine")
def retired_key_returns(engine: Engine) -> None:
    """The name of a prompt's tail is registered again after a longer one has replaced it."""
    pool, unit, group = engine.scheduler.pool, engine.config.geometry.unit, engine.config.geometry.groups[0]

    def register(original: Callable[..., None], sequence: Sequence, start: int, stop: int, share: Share | None) -> None:
        before = sequence.full
        original(sequence, start, stop, share)
        tail = (sequence.prompt - 1) // unit * unit
        if before < sequence.full == tail // group.block_size + 1 and tail % group.block_size:
            pool.publish(sequence.tables[0][sequence.full - 1], 0, sequence.path, tail, tail - unit)

    _replace(engine.scheduler.coordinator, "register_rows", register)


@_fault("hit-answers", "small")
def stale_key_after_evict(engine: Engine) -> None:
    """A block is reused and can still be found under its old names."""

    def unpublish(original: Callable[[int], None], block: int) -> None:
        engine.scheduler.pool.keys[block] = ()

    _replace(engine.scheduler.pool, "unpublish", unpublish)


@_fault("key-true", "priority", "small")
def credit_survives_cancel(engine: Engine) -> None:
    """A request is taken out of the step that it was scheduled in, and the names on its credit stay."""

    def cancel(original: Callable[..., None], sequence: Sequence, staging: Staging) -> None:
        if sequence.id in staging.shares:
            staging.shares[sequence.id].credit.clear()
        original(sequence, staging)

    _replace(engine.scheduler.preemption, "cancel", cancel)


@_fault("index-agrees")
def duplicates_share_a_fate(engine: Engine) -> None:
    """When one of several blocks under a name goes, the name goes."""
    pool = engine.scheduler.pool

    def forget(original: Callable[..., None], block: int, lineage: Lineage) -> None:
        pool.index[pool.group[block]].pop(lineage, None)

    _replace(pool, "_forget", forget)


@_fault("event-residency", "reset")
def reset_keeps_keys(engine: Engine) -> None:
    """The cache says that it is empty and is not."""
    _replace(engine.scheduler.pool, "clear", lambda original: engine.scheduler.event_log.cleared())


@_fault("event-residency", "small")
def silent_eviction(engine: Engine) -> None:
    """Nobody is told that a block lost its names."""
    _replace(engine.scheduler.event_log, "removed", lambda original, group, lineage: None)


@_fault("event-parent", "fine")
def wrong_event_parent(engine: Engine) -> None:
    """An event names as parent the boundary one unit below, which nobody may have announced."""
    _replace(engine.scheduler.pool, "parent_end", lambda original, group, path, base: base)


# ----------------------------------------------------------------------------------------------- what the worker is told


@_fault("table-agreement")
def table_differs(engine: Engine) -> None:
    """The worker is told another block than the table has, where a table grows."""

    def row(original: Callable[[Share], Row], share: Share) -> Row:
        told = original(share)
        for column in told.appended or ():
            if column:
                column[-1] = column[-1] % (engine.config.geometry.num_blocks - 1) + 1
                break
        return told

    _replace(engine.scheduler, "_row", row)


@_fault("finished-forgotten")
def finished_not_told(engine: Engine) -> None:
    """The worker does not hear that a request ended."""

    def issue(original: Callable[[Staging], Step], staging: Staging) -> Step:
        engine.scheduler.ended.clear()
        return original(staging)

    _replace(engine.scheduler, "_issue", issue)


@_fault("progress")
def hit_whole_text(engine: Engine) -> None:
    """A hit may cover the last token, and nothing is left to compute."""

    def find(original: Callable[..., Hit], path: Path, ready: Callable[[int, int], bool]) -> Hit:
        return original(Path(path[0], [*tokens_between(path, 0, len(path)), -1]), ready)

    _replace(engine.scheduler.lookup, "find", find)
