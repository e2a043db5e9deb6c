"""The step that is being put together: what goes to the worker, and what may not be read before it ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvproof.reference.sequence import Sequence
from kvproof.spec.lineage import Lineage
from kvproof.spec.records import Checkpoint, Copy

if TYPE_CHECKING:
    from kvproof.reference.connector import Transfer


class Share:
    """One sequence's part of the step: tokens [start, stop), and the keys that it published on credit."""

    __slots__ = ("credit", "sequence", "start", "stop")

    def __init__(self, sequence: Sequence, start: int, stop: int) -> None:
        self.sequence = sequence
        self.start = start
        self.stop = stop
        self.credit: list[tuple[int, Lineage]] = []


class Staging:
    """A step in the making.

    budget: tokens left. shares: by request id, in order. pins: endpoints of the copies, one entry for each reference that
    the copies hold. fresh: for each block that the step fills, how many tokens of its text it held before, at most
    (0 where all of it is new): a copy of more, or a state, may not be taken from it in this step. short: a running
    sequence did not find the blocks that it needs, so nobody is admitted.
    """

    def __init__(self, number: int, budget: int) -> None:
        self.number = number
        self.budget = budget
        self.shares: dict[str, Share] = {}
        self.copies: list[Copy] = []
        self.pins: list[int] = []
        self.zeroes: dict[int, None] = {}
        self.checkpoints: list[Checkpoint] = []
        self.fresh: dict[int, int] = {}
        self.short = False
        self.transfers: list[Transfer] = []
        self.noted = 0  # copies that are in the journal

    def copy(self, source: int, target: int) -> None:
        """Both endpoints come with a reference that belongs to the copy from now on."""
        self.copies.append(Copy(source, target))
        self.pins += (source, target)
        self.fresh[target] = 0

    def load(self, transfer: Transfer) -> None:
        """An outside load becomes part of the step."""
        self.transfers.append(transfer)
        self.fresh.update((block, 0) for blocks in transfer.load.blocks for block in blocks)

    def ready(self, block: int, length: int) -> bool:
        """Whether the block holds the first `length` tokens of its text before the step starts."""
        return self.fresh.get(block, length) >= length
