"""Who has to give way where the pool is full: the newest running sequence, or the one of the lowest priority.

A preemption gives blocks back now, and enough of them together with others, or it does not happen. Who was already part of the
same step is taken out of it: the names on its credit go. The copies that it staged stay, both ends are pinned until they ran.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from kvproof.reference.sequence import Sequence
from kvproof.reference.staging import Staging
from kvproof.spec.records import Policy

if TYPE_CHECKING:
    from kvproof.reference.scheduler import Scheduler


class Room(Enum):
    """Whether a sequence has the blocks that it asked for: FOUND; SOON, if others stay out until their steps are done; or
    NONE before somebody ends."""

    FOUND = auto()
    SOON = auto()
    NONE = auto()


class Preemption:
    """The preemption rules of one scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.policy = scheduler.config.policy
        self.fences = scheduler.config.fences

    def make_room(self, sequence: Sequence, stop: int, exported: int, staging: Staging) -> Room:
        """Room for a running sequence, after others gave way if that is enough."""
        scheduler = self.scheduler
        demand = scheduler.coordinator.demand(sequence, sequence.computed, stop, None, exported)
        short = demand - scheduler.pool.free
        if short <= 0:
            return Room.FOUND
        staging.short = True
        scheduler.note_failed(sequence, sequence.computed, stop, 0, demand)
        victims = self.victims(sequence, short, staging)
        for victim in victims:
            self.cancel(victim, staging)
            scheduler.requeue(victim)
        if victims:
            return Room.FOUND
        return Room.NONE if all(self.gives_now(other, staging) for other in self.candidates(sequence)) else Room.SOON

    def victims(self, sequence: Sequence, short: int, staging: Staging) -> list[Sequence]:
        """Whom to preempt for `short` more blocks: the worst ranked, as few as possible, each of whom gives some back now.
        Nobody where all of them do not have enough."""
        freed: dict[int, int] = {}
        victims: list[Sequence] = []
        gained = True
        while gained and short > 0:
            gained = False
            for victim in self.candidates(sequence):
                if not self.gives_now(victim, staging):
                    break  # it will in a few steps: nobody better ranked has to go instead
                gain = 0 if victim in victims else self.gain(victim, freed)
                if gain:
                    gained = True
                    short -= gain
                    victims.append(victim)
                    if short <= 0:
                        break
        return victims if short <= 0 else []

    def candidates(self, sequence: Sequence) -> list[Sequence]:
        """Who may have to give way for this sequence, worst ranked first."""
        running = self.scheduler.running
        if self.policy is Policy.FCFS:
            return running[: running.index(sequence) : -1]
        worse = [other for other in running if other.rank > sequence.rank]
        return sorted(worse, key=lambda other: other.rank, reverse=True)

    def gives_now(self, victim: Sequence, staging: Staging) -> bool:
        """Whether its blocks can be reused at once. One that is in this very step counts as used by all issued ones."""
        scheduler = self.scheduler
        if self.fences and victim.id in staging.shares and scheduler.completed < scheduler.issued:
            return False
        return scheduler.settled(victim.last_step)

    def gain(self, victim: Sequence, freed: dict[int, int]) -> int:
        """Blocks that nobody else holds. freed: references that earlier victims give up; with a gain, this one's too."""
        refs = self.scheduler.pool.refs
        blocks = victim.blocks()
        gain = sum(1 for block in blocks if refs[block] - freed.get(block, 0) == 1)
        if gain:
            for block in blocks:
                freed[block] = freed.get(block, 0) + 1
        return gain

    def cancel(self, sequence: Sequence, staging: Staging) -> None:
        """Take a sequence out of the step again: what it was to write is not written, so the names on its credit go."""
        share = staging.shares.pop(sequence.id, None)
        if share is None:
            return
        pool = self.scheduler.pool
        staging.budget += share.stop - share.start
        for block, lineage in share.credit:
            if lineage in pool.keys[block]:
                pool.retract(block, lineage)
        for block in sequence.blocks():
            staging.zeroes.pop(block, None)
        staging.checkpoints = [checkpoint for checkpoint in staging.checkpoints if checkpoint.request != sequence.id]
