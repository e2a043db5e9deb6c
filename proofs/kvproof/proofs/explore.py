"""Every state that legal actions reach in a tiny scope, found by running the rules of spec/ breadth first.

A state is kept as a *form*. What lies behind the completed step is alike, so steps are counted from there; what an ended
holder left behind is nothing. The rules know nobody by name, so of the states that differ in the names of blocks, holders and
owners only one is kept. `python -m kvproof.proofs.explore` derives the golden counts of counts.json anew, in minutes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from itertools import permutations, product
from pathlib import Path
from typing import Any

from kvproof.proofs.face import parts, sorts_of
from kvproof.proofs.obligations import RULES, Kernel
from kvproof.proofs.scope import KINDS, TEXTS, named
from kvproof.spec.actions import ACTIONS
from kvproof.spec.clauses import broken
from kvproof.spec.errors import Refused
from kvproof.spec.state import Holder, State

GOLDEN = Path(__file__).with_name("counts.json")
CONTENTS, USES = ("before", "mid", "after"), ("used_before", "last_use")
FLAGS, KEYS = ("zeroed", "copied", "source", "loaded", "written"), ("keyed", "staged_key", "retired")

Row = tuple[int, ...]  # a holder on its block: owner, fence, needs, reads, whether it loads, name; -1 is none
Cell = tuple[tuple[int, ...], tuple[Row, ...]]  # a block: contents, uses, flags and keys; its holders
Form = tuple[int, tuple[bool, ...], tuple[Cell, ...]]  # steps in flight, who is alive, blocks


@dataclass(eq=False)
class Scope:
    """How much there is of everything, and one state to work on.

    blocks, holders, owners, kinds, texts: see `scope.named`. flying: steps in flight at most. opening: actions that are taken
    first, each with the numbers of its arguments. depth: actions in a row after that, None for all. named: names count.
    """

    blocks: int
    holders: int
    owners: str = "r"
    _: KW_ONLY
    kinds: tuple[str, ...] = ("state",)
    texts: tuple[str, ...] = ("ab",)
    flying: int = 1
    unordered: bool = False
    opening: tuple[tuple[Any, ...], ...] = ()
    depth: int | None = None
    named: bool = False

    def __post_init__(self) -> None:
        objects = named(self.blocks, self.holders, self.owners, self.texts, self.kinds)
        self.things: dict[str, list[Any]] = {sort: [*members.values()] for sort, members in objects.items()}
        self.number = {thing: i for sort in self.things.values() for i, thing in enumerate(sort)}
        self.state = State(unordered=self.unordered)
        self.filled = cache(self.filling)
        for name, *at in self.opening:
            sorts = sorts_of(ACTIONS[name])
            ACTIONS[name].apply(self.state, *(self.things.get(s, range(9))[i] for s, i in zip(sorts, at, strict=True)))
        self.start = self.form(self.state)

    def form(self, state: State) -> Form:
        """The form of a state whose clauses hold."""
        number, base = self.number, state.completed

        def bits(things: Any) -> int:
            return sum(1 << number[thing] for thing in things)

        def row(holder: Holder) -> Row:
            fence = max(state.fence[holder] - base, 0) if state.fenced[holder] else -1
            owner = next((number[owner] for owner in state.belongs.of(holder)), -1)
            name = number[holder] if self.named else -1
            return owner, fence, bits(state.needs.of(holder)), bits(state.reads.of(holder)), len(state.loading.of(holder)), name

        def cell(block: int) -> Cell:
            contents = [number[getattr(state, name)[block]] for name in CONTENTS]
            uses = [max(getattr(state, name)[block] - base, 0) for name in USES]
            flags = [getattr(state, name)[block] for name in FLAGS]
            keys = [bits(getattr(state, name).at(block)) for name in KEYS]
            return (*contents, *uses, *flags, *keys), tuple(sorted(map(row, state.holds.at(block))))

        alive = tuple(state.alive[owner] for owner in self.things["Owner"])
        form = (state.issued - base, alive, tuple(map(cell, self.things["Block"][1:])))
        return form if self.named else unnamed(form)

    def load(self, form: Form) -> State:
        """Makes the state one of that form."""
        for name in parts():
            getattr(self.state, name).clear()
        self.state.completed, self.state.issued = 0, form[0]
        self.state.alive.update(zip(self.things["Owner"], form[1], strict=True))
        first = 0
        for block, cell in enumerate(form[2], 1):
            for write, left, right in self.filled(block, first, cell):
                write(left, right)
            first += len(cell[1])
        return self.state

    def filling(self, block: int, first: int, cell: Cell) -> list[tuple[Callable[[Any, Any], object], Any, Any]]:
        """The writes that make a block what it is. Where names do not count its holders are the first ones from `first`."""
        state, keys, found = self.state, list(enumerate(self.things["Key"])), []
        for name, value in zip((*CONTENTS, *USES, *FLAGS), cell[0], strict=False):
            thing = self.things["Content"][value] if name in CONTENTS else value
            found.append((getattr(state, name).__setitem__, block, thing))
        for name, bits in zip(KEYS, cell[0][-len(KEYS) :], strict=True):
            found += [(getattr(state, name).add, key, block) for i, key in keys if bits >> i & 1]
        for place, (owner, fence, needs, reads, loads, own) in enumerate(cell[1], first):
            holder = self.things["Holder"][place if own < 0 else own]
            found += [(state.holds.add, holder, block), (state.fenced.__setitem__, holder, fence >= 0)]
            found += [(state.fence.__setitem__, holder, fence), *[(state.loading.add, holder, block)] * loads]
            found += [(state.belongs.add, holder, self.things["Owner"][owner])] * (owner >= 0)
            found += [(state.needs.add, holder, key) for i, key in keys if needs >> i & 1]
            found += [(state.reads.add, holder, key) for i, key in keys if reads >> i & 1]
        return found

    def choices(self, name: str) -> Iterator[tuple[Any, ...]]:
        """All arguments with which the guards of an action pass. It is taken each time: load the state anew before going on.

        Where a guard refuses, so it does whatever the parameters are that it does not speak of. Of holders that hold nothing
        one is offered, where names do not count; none to `hand_over`, which would speak of nobody.
        """
        state, act, asked = self.state, ACTIONS[name].apply, spoken()[name]
        values = dict(self.things, int=range(state.completed, state.staging + 1))
        used = [holder for holder in values["Holder"] if state.holds.of(holder)]
        unused = [holder for holder in values["Holder"] if not state.holds.of(holder)]
        values["Holder"] = used if name == "hand_over" else used + (unused if self.named else unused[:1])
        refused: tuple[Any, ...] | None = None  # how the last refused arguments begin, as far as the guard speaks of them
        for chosen in product(*(values[sort] for sort in sorts_of(ACTIONS[name]))):
            if refused is None or chosen[: len(refused)] != refused:
                try:
                    act(state, *chosen)
                    yield chosen
                except Refused as refusal:
                    refused = chosen[: asked[refusal.guard] + 1]

    def next(self, form: Form) -> Iterator[tuple[str, tuple[Any, ...], Form]]:
        """Every action that may happen in a state, with its arguments and what comes of it."""
        self.load(form)
        for name in ACTIONS:
            if name != "issue" or form[0] < self.flying:
                for chosen in self.choices(name):
                    yield name, chosen, self.form(self.state)
                    self.load(form)


def unnamed(form: Form) -> Form:
    """The least of the forms that differ in the names of owners and in the order of blocks."""
    flying, alive, cells = form
    return min(
        (flying, tuple(alive[i] for i in order), tuple(sorted([_unnamed(cell, order) for cell in cells])))
        for order in permutations(range(len(alive)))
    )


@cache
def _unnamed(cell: Cell, order: tuple[int, ...]) -> Cell:
    return cell[0], tuple(sorted((row[0] if row[0] < 0 else order.index(row[0]), *row[1:-1], -1) for row in cell[1]))


@cache
def spoken() -> dict[str, dict[str, int]]:
    """For each guard of each action the last parameter that it speaks of, -1 of none; read off its term."""
    kernel, found = Kernel(RULES), dict[str, dict[str, int]]()
    for name, action in ACTIONS.items():
        numbered = [(i, f"{parameter}?") for i, parameter in enumerate(action.parameters)]
        texts = {guard: term.sexpr() for guard, term in kernel.after(name)[0].items()}
        found[name] = {guard: max((i for i, symbol in numbered if symbol in text), default=-1) for guard, text in texts.items()}
    return found


@dataclass
class Found:
    """depths: new states after so many actions. happened: how often each action may happen, in all states together.
    complete: no state is left to look at. broken: clauses, their row, and the form that breaks them; there should be none."""

    depths: list[int] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    complete: bool = False
    broken: list[tuple[str, object, Form]] = field(default_factory=list)


def explore(scope: Scope, visit: Callable[[int, Form], object] = lambda depth, form: None) -> Found:
    """All states from the first one of the scope, breadth first; `visit` sees each once. Ends where a clause breaks."""
    found, seen, new = Found(), {scope.start}, [scope.start]
    while new:
        depth = len(found.depths)
        found.depths.append(len(new))
        for form in new:
            visit(depth, form)
            rows = broken(scope.load(form), scope.things["Block"], scope.things["Holder"])
            found.broken += [(clause, row, form) for clause, row in rows]
        if found.broken or depth == scope.depth:
            return found
        reached = []
        for form in new:
            for name, _, then in scope.next(form):
                found.happened[name] += 1
                if then not in seen:
                    seen.add(then)
                    reached.append(then)
        new = reached
    found.complete = True
    return found


COPY = (  # a keyed block of an issued step and a fresh one, both pinned: endpoints of a copy
    *(("start", 0), ("acquire", 0, 1, 0), ("stage_write", 0, 1, 2, 0), ("publish", 1, 0), ("issue",)),
    *(("acquire", 1, 2, 0), ("pin", 2, 2, 2), ("pin", 3, 1, 2)),
)
ALL: dict[str, Any] = {"kinds": KINDS, "texts": TEXTS}
SCOPES: dict[str, dict[str, Any]] = {
    "one holder": {"blocks": 1, "holders": 1},
    "all kinds": {"blocks": 2, "holders": 4, "owners": "rs", **ALL, "flying": 2, "depth": 5},
    "copies": {"blocks": 2, "holders": 5, **ALL, "flying": 2, "opening": COPY, "depth": 2},
}
LONG: dict[str, dict[str, Any]] = {
    "two keys": {"blocks": 1, "holders": 1, "kinds": ("rows",), "texts": TEXTS},
    "two holders": {"blocks": 1, "holders": 2},
    "two owners": {"blocks": 1, "holders": 1, "owners": "rs", "flying": 2},
    "three blocks": {"blocks": 3, "holders": 5, "owners": "rs", **ALL, "flying": 2, "depth": 5},
    "copies of states": {"blocks": 2, "holders": 5, "flying": 2, "opening": COPY, "depth": 4},
}


def counted(name: str, *, unordered: bool) -> tuple[str, dict[str, Any]]:
    """What is pinned of a scope: a label; new states after so many actions, whether none is left, how often each action may
    happen. Raises AssertionError where a clause breaks."""
    found = explore(Scope(**(SCOPES | LONG)[name], unordered=unordered))
    assert not found.broken, found.broken
    happened = dict(sorted(found.happened.items()))
    return f"{name}, {'un' * unordered}ordered", {"states": found.depths, "all": found.complete, "happened": happened}


def pinned() -> dict[str, dict[str, Any]]:
    """The golden counts. `python -m kvproof.proofs.explore` derives them anew."""
    return dict(json.loads(GOLDEN.read_text()))


if __name__ == "__main__":
    everything = [counted(name, unordered=unordered) for name in SCOPES | LONG for unordered in (False, True)]
    entries = ",\n".join(f"{json.dumps(label)}: {json.dumps(counts)}" for label, counts in everything)
    GOLDEN.write_text(f"{{\n{entries}\n}}\n")
