"""The waiting line: by priority where that is the policy, then by arrival, so whoever was preempted comes back in its place."""

from __future__ import annotations

from heapq import heappop, heappush

from kvproof.reference.sequence import Sequence, Status


class Waiting:
    """Sequences by rank. Those that are no longer waiting are skipped when they come up."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Sequence]] = []

    def push(self, sequence: Sequence) -> None:
        heappush(self._heap, (sequence.rank, sequence))

    def first(self) -> Sequence | None:
        while self._heap:
            sequence = self._heap[0][1]
            if sequence.status is Status.WAITING:
                return sequence
            heappop(self._heap)
        return None

    def pop(self) -> None:
        heappop(self._heap)
