"""A request as the engine knows it: its text so far, how far it is computed, and the blocks it holds."""

from __future__ import annotations

from enum import Enum, auto

from kvproof.spec.geometry import Geometry
from kvproof.spec.lineage import Lineage, Path
from kvproof.spec.records import Extras, Request


class Status(Enum):
    WAITING = auto()
    LOADING = auto()  # an outside load fills its first blocks
    RUNNING = auto()
    DEAD = auto()


class Sequence:
    """Mutable state of one request.

    path, known: the text so far, prompt and accepted tokens, and its length. limit: the length at which it is finished.
    eos: a token that finishes it before. outside: tokens that a connector can still load.
    computed: tokens computed when all issued steps are done. in_flight: how many of them are in steps not completed.
    placeholders: tokens that steps in flight will sample. So known + placeholders is the text that can be scheduled.
    tables: block ids per group, 0 for none. told: how much of each table the worker knows; None: nothing.
    life: how often it was preempted. stale: its rows in flight from earlier lives. kept_from: rows of lives before this
        one are dropped, not delivered.
    last_step: newest issued step with a row of it.
    full: append-only blocks whose full name was published or found. owed: state positions to publish when their tokens
        are known. retired: per group, leading slots that are null. kept: positions whose states are kept.
    """

    __slots__ = (
        "computed",
        "eos",
        "extras",
        "full",
        "id",
        "in_flight",
        "junction",
        "kept",
        "kept_from",
        "known",
        "last_step",
        "life",
        "limit",
        "outside",
        "owed",
        "path",
        "placeholders",
        "prompt",
        "rank",
        "retired",
        "stale",
        "status",
        "tables",
        "tail",
        "told",
    )

    def __init__(
        self,
        request: Request,
        root: Lineage,
        geometry: Geometry,
        limit: int,
        rank: tuple[int, int],
        extras: Extras,
        eos: int | None,
    ) -> None:
        self.id = request.id
        self.path = Path(root, request.prompt)
        self.prompt = self.known = len(request.prompt)
        self.tail = (self.prompt - 1) // geometry.unit * geometry.unit
        self.limit = limit
        self.rank = rank
        self.extras = extras
        self.eos = eos
        self.outside = extras.outside
        self.status = Status.WAITING
        self.life = self.stale = self.kept_from = self.last_step = 0
        self.begin(len(geometry.groups))

    def begin(self, groups: int) -> None:
        """A new life: nothing computed, nothing held."""
        self.computed = self.in_flight = self.placeholders = self.full = self.junction = 0
        self.tables: list[list[int]] = [[] for _ in range(groups)]
        self.retired = [0] * groups
        self.told: list[int] | None = None
        self.owed: list[int] = []
        self.kept: frozenset[int] = frozenset()

    @property
    def goal(self) -> int:
        """How far it can be computed now. The last token of a text that is at its limit never is."""
        return min(self.known + self.placeholders, self.limit - 1)

    def hear(self, tokens: list[int]) -> None:
        """Tokens were accepted: the text goes on with them."""
        self.path.extend(tokens)
        self.known += len(tokens)

    def blocks(self) -> list[int]:
        """What it holds, in the order in which it should be reused: the end of each table first."""
        return [block for table in self.tables for block in reversed(table) if block]
