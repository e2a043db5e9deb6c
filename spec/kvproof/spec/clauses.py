"""What is always true. Each clause is a named predicate of one row (a block, a holder, or the clock).

A monitor evaluates the rows that an action touched; a whole-state check evaluates all rows; a proof quantifies over the row.
`check` names the entry of the registry that a broken clause is reported under.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvproof.spec.logic import Term, answers, both, either, every, implies, negate, none, some
from kvproof.spec.state import Block, Holder, State


@dataclass(frozen=True, slots=True)
class Clause:
    """A clause: its name (a sentence), the sort of its row ("block", "holder" or "clock"), and its predicate."""

    name: str
    row: str
    check: str
    holds: Callable[..., Term]


CLAUSES: dict[str, Clause] = {}


def clause(name: str, check: str) -> Callable[[Callable[..., Term]], Callable[..., Term]]:
    def register(predicate: Callable[..., Term]) -> Callable[..., Term]:
        rows = predicate.__code__.co_varnames[1 : predicate.__code__.co_argcount]
        CLAUSES[name] = Clause(name, rows[0] if rows else "clock", check, predicate)
        return predicate

    return register


# ---------------------------------------------------------------------------------------------------- contents and readers


@clause("a keyed block answers all its keys once the staged step is done", "key-true")
def keys_are_true(state: State, block: Block) -> Term:
    return state.keys_answered(block, state.after[block])


@clause("what a holder relies on, its block holds then", "needs-kept")
def needs_are_met(state: State, block: Block) -> Term:
    return state.needs_answered(block, state.after[block])


@clause("a state read finds its state before the forward pass", "source-ready")
def state_reads_are_met(state: State, block: Block) -> Term:
    return state.reads_answered(block, state.mid[block])


@clause("a key from an earlier step is answered before the staged step, and the step does not clear it", "source-ready")
def settled_keys_are_ready(state: State, block: Block) -> Term:
    return every(
        state.keyed.at(block),
        lambda key: either(
            state.staged_key[key, block],
            lambda: both(answers(state.before[block], key), negate(state.zeroed[block])),
        ),
    )


@clause("content changes only where something is staged", "needs-kept")
def untouched_content_stays(state: State, block: Block) -> Term:
    filled = either(state.zeroed[block], state.copied[block], state.loaded[block])
    return both(
        either(filled, state.mid[block] == state.before[block]),
        either(state.written[block], state.after[block] == state.mid[block]),
    )


@clause("a retired key does not come back", "retired-key")
def retired_keys_stay_away(state: State, block: Block) -> Term:
    return every(state.keyed.at(block), lambda key: negate(state.retired[key, block]))


# --------------------------------------------------------------------------------------------------------------- ownership


@clause("a block that is used beyond the horizon is held by a holder that reaches that use", "used-stays-held")
def used_blocks_stay_held(state: State, block: Block) -> Term:
    used = state.last_use[block]
    return either(used <= state.horizon, lambda: some(state.holds.at(block), lambda h: state.reaches(h, used)))


@clause("both endpoints of a copy are held by a fence until the copy ran", "endpoint-held")
def endpoints_are_pinned(state: State, block: Block) -> Term:
    return implies(either(state.copied[block], state.source[block]), lambda: state.pinned(block))


@clause("a staged use is a use, and no use is later", "used-stays-held")
def uses_are_counted(state: State, block: Block) -> Term:
    staging = state.staging
    used = either(
        state.copied[block],
        state.source[block],
        state.loaded[block],
        state.written[block],
        both(state.zeroed[block], state.unordered),
    )
    return both(
        state.used_before[block] >= 0,
        state.used_before[block] <= state.issued,
        state.used_before[block] <= state.last_use[block],
        state.last_use[block] <= staging,
        implies(used, lambda: state.last_use[block] == staging),
    )


@clause("a staged state read is a use", "used-stays-held")
def reads_are_uses(state: State, block: Block) -> Term:
    staging = state.staging
    return either(
        state.last_use[block] == staging,
        lambda: every(state.holds.at(block), lambda h: none(state.reads.of(h))),
    )


@clause("the null block is inert", "null-inert")
def null_is_inert(state: State, block: Block) -> Term:
    return either(
        block != state.null,
        lambda: both(
            none(state.holds.at(block)),
            none(state.keyed.at(block)),
            negate(either(state.zeroed[block], state.copied[block], state.loaded[block], state.written[block])),
            state.last_use[block] == 0,
        ),
    )


@clause("a holder holds one block", "refs-are-holders")
def one_block_per_holder(state: State, holder: Holder) -> Term:
    held = state.holds.of(holder)
    return every(held, lambda b: every(held, lambda c: b == c))


@clause("a holder is a fence or belongs to somebody alive", "no-orphan")
def no_orphans(state: State, holder: Holder) -> Term:
    return either(
        none(state.holds.of(holder)),
        state.fenced[holder],
        lambda: some(state.belongs.of(holder), lambda owner: state.alive[owner]),
    )


@clause("a fence ends with a step that exists", "fence-drains")
def fences_are_bounded(state: State, holder: Holder) -> Term:
    return either(none(state.holds.of(holder)), negate(state.fenced[holder]), lambda: state.fence[holder] <= state.staging)


@clause("an outside write runs on a block that no step in flight or staged touches and nobody reads", "outside-write-race")
def loads_are_alone(state: State, holder: Holder) -> Term:
    def alone(block: Block) -> Term:
        return both(
            state.live(holder, block),
            state.last_use[block] <= state.completed,
            negate(state.zeroed[block]),
            none(state.keyed.at(block)),
            every(state.holds.at(block), lambda h: none(state.needs.of(h))),
        )

    return every(state.loading.of(holder), alone)


@clause("steps complete after they were issued", "progress")
def clock_runs_forward(state: State) -> Term:
    return both(state.completed >= 0, state.completed <= state.issued)


def broken(state: State, blocks: Any = (), holders: Any = ()) -> list[tuple[str, object]]:
    """The clauses that do not hold, with the row each is broken for; of the clock and of the rows given."""
    rows = {"block": blocks, "holder": holders}
    found: list[tuple[str, object]] = []
    for name, entry in CLAUSES.items():
        if entry.row == "clock":
            if entry.holds(state) is not True:
                found.append((name, None))
            continue
        found += [(name, row) for row in rows[entry.row] if entry.holds(state, row) is not True]
    return found


def quiet(state: State) -> list[str]:
    """What is left over at quiescence, when nobody is alive and all steps are done: nothing should be held."""
    return [f"block {block} is held ({holder.place})" for holder, block in state.holds.pairs()]
