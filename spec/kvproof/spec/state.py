"""The state of the kernel: relations and functions, nothing derived.

A block is free when it is not null and nobody holds it; its reference count is the number of its holders. Neither is stored.
Device order is issue order, so three contents per block describe any number of steps in flight: `before` (the staged step
starts: all issued steps are done), `mid` (its zeroing, copies and ordered loads are done) and `after` (it is done).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from kvproof.spec.errors import Refused
from kvproof.spec.geometry import NULL_BLOCK
from kvproof.spec.lineage import UNKNOWN, ZERO, Content, Key
from kvproof.spec.logic import (
    Function,
    Layer,
    Relation,
    Term,
    answers,
    both,
    choose,
    either,
    every,
    negate,
    none,
    some,
    watched,
)

Block = int


@dataclass(eq=False, slots=True)
class Owner:
    """Who a holder belongs to: a request's life (id and epoch) or a connector job. A thing, compared by identity."""

    kind: str
    name: object
    epoch: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(eq=False, slots=True)
class Holder:
    """One reason why a block may not be reused. A thing, not a value: each is born once and ends once.

    place: for people: which table slot, copy endpoint or lease this is.
    """

    group: int
    place: tuple[object, ...]

    def __str__(self) -> str:
        return f"{':'.join(map(str, self.place))} of group {self.group}"


WatchedRelation: type[Relation[Any, Any]] = watched(
    Relation,
    "__getitem__ of at",
    "add add_if remove clear_of clear_at set_of hand_of hand_at copy_at clear_of_each clear",
)
WatchedFunction: type[Function[Any, Any]] = watched(Function, "__getitem__", "__setitem__ set_each clear")
WatchedLayer: type[Layer[Any, Any]] = watched(Layer, "__getitem__", "__setitem__ sink clear")


class State:
    """All of it.

    unordered: outside writers exist that are not ordered with the device's steps. strict: hold actions to the house rules
    of `logic` (guards, snapshots, writes; no read after write); costs time, so tests ask for it and monitors do not.
    """

    def __init__(self, *, unordered: bool = False, strict: bool = False) -> None:
        relation = WatchedRelation if strict else Relation
        function, layer = (WatchedFunction, WatchedLayer) if strict else (Function, Layer)
        self.null: Block = NULL_BLOCK
        self.zero: Content = ZERO
        self.unordered = unordered
        self.holds: Relation[Holder, Block] = relation()
        self.needs: Relation[Holder, Key] = relation()  # what the holder's reader relies on
        self.reads: Relation[Holder, Key] = relation()  # states that the staged step reads
        self.keyed: Relation[Key, Block] = relation()
        self.staged_key: Relation[Key, Block] = relation()  # keyed in the step being staged
        self.retired: Relation[Key, Block] = relation()  # replaced on this block by a longer key
        self.loading: Relation[Holder, Block] = relation()
        self.belongs: Relation[Holder, Owner] = relation()  # fences that were born as such belong to nobody
        self.alive: Function[Owner, bool] = function(False)
        self.fenced: Function[Holder, bool] = function(False)
        self.fence: Function[Holder, int] = function(0)  # the step that ends a fenced holder
        self.before: Function[Block, Content] = function(UNKNOWN)
        self.mid: Layer[Block, Content] = layer(self.before)
        self.after: Layer[Block, Content] = layer(self.mid)
        self.zeroed: Function[Block, bool] = function(False)
        self.copied: Function[Block, bool] = function(False)
        self.source: Function[Block, bool] = function(False)
        self.loaded: Function[Block, bool] = function(False)  # filled by a load that is ordered with the staged step
        self.written: Function[Block, bool] = function(False)
        self.used_before: Function[Block, int] = function(0)  # newest issued step that reads or writes it
        self.last_use: Layer[Block, int] = layer(self.used_before)  # the staged step counted in
        self.issued: int = 0
        self.completed: int = 0
        self.refusals: list[str] | None = None  # a list: guards that fail are noted there and the action goes on

    def settle(self) -> None:
        """The action is over: what it wrote may be read again. Only a strict state keeps track."""
        for value in vars(self).values():
            if hasattr(value, "settle"):
                value.settle()

    def require(self, guard: str, term: Term) -> None:
        """A guard: raises `Refused`, or notes the guard where the caller adopts what it observed."""
        if term is True:
            return
        if term is not False:
            raise TypeError(f"guard {guard!r} is {term!r}, neither True nor False")
        if self.refusals is None:
            raise Refused("action", guard)
        self.refusals.append(guard)

    # --------------------------------------------------------------------------- words that actions and clauses share

    @property
    def staging(self) -> int:
        """The number of the step that is being staged."""
        return self.issued + 1

    @property
    def horizon(self) -> int:
        """Blocks used up to here may be reused: the issued step where device order protects, else the completed one."""
        return choose(self.unordered, self.completed, self.issued)  # type: ignore[no-any-return]

    def free(self, block: Block) -> Term:
        return both(block != self.null, lambda: none(self.holds.at(block)))

    def unused(self, holder: Holder) -> Term:
        return none(self.holds.of(holder))

    def live(self, holder: Holder, block: Block) -> Term:
        return both(self.holds[holder, block], negate(self.fenced[holder]))

    def reaches(self, holder: Holder, step: int) -> Term:
        """Whether a holder lasts until a step is over: a fence does if it is late enough, any other holder does."""
        return either(negate(self.fenced[holder]), lambda: self.fence[holder] >= step)

    def pinned(self, block: Block) -> Term:
        """Held by a fence that ends with the staged step."""
        staging = self.staging
        return some(self.holds.at(block), lambda h: both(self.fenced[h], lambda: self.fence[h] == staging))

    def loads(self, block: Block) -> Collection[Holder]:
        return self.loading.at(block)

    def keys_answered(self, block: Block, content: Content) -> Term:
        return every(self.keyed.at(block), lambda key: answers(content, key))

    def needs_answered(self, block: Block, content: Content) -> Term:
        return every(self.holds.at(block), lambda h: every(self.needs.of(h), lambda need: answers(content, need)))

    def others_answered(self, block: Block, content: Content, holder: Holder) -> Term:
        """What the other holders of the block rely on is in `content`."""
        return every(
            self.holds.at(block),
            lambda h: either(h == holder, lambda: every(self.needs.of(h), lambda need: answers(content, need))),
        )

    def reads_answered(self, block: Block, content: Content) -> Term:
        return every(self.holds.at(block), lambda h: every(self.reads.of(h), lambda key: answers(content, key)))
