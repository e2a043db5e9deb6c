"""Offers the kernel random actions in a tiny universe: which guards refuse, which actions happen, does any clause break?

A workload that an engine serves well refuses nothing, so it says nothing about the guards. The probe does: every guard has to
refuse at least once, every action has to happen, and no clause may break after an action that passed its guards.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from kvproof.spec.actions import ACTIONS
from kvproof.spec.clauses import broken
from kvproof.spec.errors import Refused
from kvproof.spec.geometry import NULL_BLOCK, Geometry
from kvproof.spec.lineage import UNKNOWN, ZERO, Forest, Path
from kvproof.spec.state import Holder, Owner, State

SORTS = {
    "holder": "holder",
    "slot": "holder",
    "private": "holder",
    "block": "block",
    "source": "block",
    "target": "block",
    "key": "key",
    "need": "key",
    "content": "content",
    "junk": "content",
    "owner": "owner",
    "until": "step",
}

OFTEN = [*ACTIONS, *ACTIONS, "acquire", "pin", "pin", "pin", "stage_write", "publish", "redirect", "move", "share"]


@dataclass
class ProbeResult:
    """Offers made, actions that happened, refusals by (action, guard), and clauses that broke (there should be none)."""

    offers: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    @property
    def silent(self) -> list[str]:
        """Actions that never happened and guards that never refused."""
        actions = [name for name in ACTIONS if not self.happened[name]]
        guards = [f"{n} / {g}" for n, a in ACTIONS.items() for g in a.guards if not self.refused[n, g]]
        return actions + guards


class Universe:
    """Two or three blocks and null, five holders, two owners, two texts that part after two tokens; a group of each kind."""

    def __init__(self, rng: random.Random, *, unordered: bool, strict: bool = True) -> None:
        self.rng = rng
        self.state = State(unordered=unordered, strict=strict)
        geometry = Geometry.of(4, (4,), unit=2, num_blocks=4)
        root = Forest().root()
        texts = [Path(root, (1, 2, 3, 4)), Path(root, (1, 2, 5, 6))]
        prefixes = dict.fromkeys(text[n] for text in texts for n in (2, 4))
        self.keys = [prefix.key(group) for group in geometry.groups for prefix in prefixes]
        self.contents = [UNKNOWN, ZERO, *(key.content for key in self.keys)]
        self.blocks = [NULL_BLOCK, 1, 2, 3][: rng.choice((3, 4))]
        self.owners = [Owner("request", name) for name in "ab"]
        self.holders = [Holder(0, ("h", i)) for i in range(5)]

    def argument(self, name: str, chosen: dict[str, Any]) -> Any:
        """A random value of the parameter's sort; often one that fits the values chosen before it."""
        state, rng, sort = self.state, self.rng, SORTS[name]
        if sort == "step":
            return state.issued + rng.choice((-1, 0, 1, 1, 1, 1, 1, 2))
        if sort == "owner":
            return rng.choice(self.owners)
        fitting: list[Any] = []
        if sort == "block":
            fitting = self.fitting_blocks(name, chosen)
        elif sort == "key" and "content" in chosen:
            fitting = [key for key in self.keys if chosen["content"].answers(key)]
        elif sort == "key" and "block" in chosen:
            fitting = list(state.keyed.at(chosen["block"])) if name == "key" else []
            fitting += [key for key in self.keys if state.after[chosen["block"]].answers(key)]
        if fitting and rng.random() < 0.8:
            return rng.choice(fitting)
        anything: dict[str, list[Any]] = {"block": self.blocks, "key": self.keys, "content": self.contents}
        return rng.choice(anything.get(sort, self.holders))

    def fitting_blocks(self, name: str, chosen: dict[str, Any]) -> list[int]:
        """Blocks of the holder chosen before; for a copy also keyed sources and pinned targets."""
        state = self.state
        holder = chosen.get("private") if name == "target" else chosen.get("holder") or chosen.get("slot")
        if holder is not None:
            return list(state.holds.of(holder))
        if name == "source":
            return [block for block in self.blocks if state.keyed.at(block)]
        if name == "target":
            return [block for block in self.blocks if state.pinned(block)]
        return []

    def scene(self, result: ProbeResult) -> None:
        """One of the openings below, each line left out now and then, to come near the rarer guards."""
        h, (one, two) = self.rng.sample(self.holders, 5), self.blocks[1:3]
        owner, key, junk = self.owners[0], self.rng.choice(self.keys), UNKNOWN
        staging = self.rng.choice((1, 2))
        filled: list[tuple[Any, ...]] = [
            ("start", owner),
            ("acquire", h[0], one, owner),
            ("stage_write", h[0], one, key.content, key),
            ("publish", one, key),
        ]
        shared = [*filled, ("share", h[1], one, key, key, owner), ("retract", one, key)]
        settled = [*shared, ("forget", h[0], key), ("forget", h[1], key), ("issue",), ("complete",)]
        endpoints = [("acquire", h[2], two, owner), ("pin", h[3], two, staging), ("pin", h[4], one, staging)]
        unread = [*filled, ("issue",), ("stage_read_state", h[0], one, key), ("forget", h[0], key), ("retract", one, key)]
        twin = [*filled, ("acquire", h[2], two, owner), ("stage_write", h[2], two, key.content, key)]
        ends = [("pin", h[3], two, 2), ("pin", h[4], one, 2)]
        sharing = [*filled, ("issue",), ("share", h[1], one, key, key, owner), ("acquire", h[2], two, owner)]
        short, long = self.keys[0], self.keys[1]  # of one text, append-only
        promoted = [("start", owner), ("acquire", h[0], one, owner), ("stage_write", h[0], one, long.content, long)]
        openings = [
            [*twin, ("publish", two, key), ("issue",), *ends, ("move", one, two)],
            [*twin, ("issue",), *ends, ("redirect", h[0], one, h[2], two), ("stage_load", h[1], one, junk, key)],
            [*sharing, *ends, ("redirect", h[0], one, h[2], two), ("stage_load", h[1], one, key.content, key)],
            [*promoted, ("publish", one, short), ("promote", one, long), ("promote", one, short)],
            [*unread, *endpoints, self.rng.choice((("redirect", h[2], two, h[0], one), ("move", two, one)))],
            [*unread, self.rng.choice((("stage_zero", one), ("stage_load", h[0], one, key.content, key)))],
            shared,
            [*settled, ("begin_load", h[0], one, junk), ("begin_load", h[1], one, junk)],
            [*filled, ("issue",), ("share", h[1], one, key, key, owner), *endpoints],
            [*filled, *endpoints, ("redirect", h[0], one, h[2], two)],
            [*filled, *endpoints, ("stage_write", h[2], two, key.content, key), ("publish", two, key), ("issue",)],
        ]
        for name, *arguments in self.rng.choice(openings):
            if self.rng.random() < 0.9:
                self.act(result, name, arguments)

    def take(self, name: str, arguments: Any) -> str | None:
        """Take an action; the guard that refused it, or None."""
        try:
            ACTIONS[name].apply(self.state, *arguments)
        except Refused as refusal:
            return refusal.guard
        finally:
            self.state.settle()
        return None

    def offer(self, result: ProbeResult, name: str | None = None) -> None:
        """One action, random where none is named, with random arguments; taken where its guards pass."""
        name = name or self.rng.choice(OFTEN)
        arguments: dict[str, Any] = {}
        for parameter in ACTIONS[name].parameters:
            arguments[parameter] = self.argument(parameter, arguments)
        self.act(result, name, list(arguments.values()))

    def act(self, result: ProbeResult, name: str, arguments: list[Any]) -> None:
        """Offer one action; count what came of it, and look for clauses that it broke."""
        result.offers += 1
        guard = self.take(name, arguments)
        if guard is not None:
            result.refused[name, guard] += 1
            return
        result.happened[name] += 1
        for clause, row in broken(self.state, self.blocks, self.holders):
            result.broken.append(f"{name}({arguments}) broke {clause!r} for {row}")


def probe(seed: int, offers: int, *, run_length: int = 40, strict: bool = True) -> ProbeResult:
    """Offer `offers` random actions, starting anew every `run_length`, with and without outside writers in turn."""
    rng = random.Random(seed)
    result = ProbeResult()
    run = 0
    while result.offers < offers and not result.broken:
        universe = Universe(rng, unordered=bool(run % 2), strict=strict)
        universe.scene(result)
        run += 1
        for _ in range(min(run_length, offers - result.offers)):
            universe.offer(result)
    return result
