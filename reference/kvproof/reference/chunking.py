"""Where prefill chunks stop. A state is there to be kept only where a chunk ends, so ends are steered.

Stops: the grid (where every state group ends a block; every group, if hits end at block boundaries only), the last grid
position and the last unit boundary that leave a token of the prompt to compute, and an observed junction. These are the rules
of `_mamba_block_aligned_split` of vLLM 0.32, with a grid in place of the one block size that vLLM has. All numbers are tokens.
"""

from __future__ import annotations

from math import lcm

from kvproof.spec.records import Config


class Chunking:
    """The chunk rules of one configuration."""

    def __init__(self, config: Config) -> None:
        geometry = config.geometry
        self.free = not geometry.states  # without states every position can be resumed at
        self.grid = lcm(*(group.block_size for group in geometry.states)) if geometry.fine else geometry.scheduler_block
        self.unit = geometry.unit if geometry.fine else self.grid
        self.widest = config.max_batched_tokens
        self.exact = config.junctions and geometry.fine
        self.checkpoints = all(group.checkpoint for group in geometry.states)

    def mark(self, junction: int, prompt: int) -> int:
        """Where to stop for a junction: at it where partial states are kept, else at the grid position before it."""
        return junction if self.exact and junction <= prompt else junction // self.grid * self.grid

    def kept(self, junction: int, prompt: int) -> frozenset[int]:
        """Positions whose states are kept whatever the retention: two to replay the prompt from, and the junction."""
        return frozenset({self._last(prompt, self.grid), self._last(prompt, self.unit), self.mark(junction, prompt)}) - {0}

    def stop(self, start: int, wanted: int, prompt: int, known: int, junction: int) -> tuple[int, int]:
        """Where a chunk that starts at `start` and may have `wanted` tokens ends, and the inner position to export, or 0.

        known: length of the text, prompt and samples, that a resumed request replays. An end at `start` says: wait for a
        step with a larger budget.
        """
        end, goal = start + wanted, max(prompt, known - 1)
        if self.free or start >= goal:
            return end, 0
        if end < goal:
            on_grid = end // self.grid * self.grid
            if on_grid > start:
                end = on_grid
            elif self.grid <= self.widest:
                return start, 0
        mark = self.mark(junction, prompt)
        exported = self._exported(start, end, goal)
        if exported and not start < mark < end:
            return end, exported
        last, tail = self._last(known, self.grid), self._last(prompt, self.unit)
        realigned = -(-start // self.grid) * self.grid
        stops = (realigned, last, tail if tail > last else 0, mark)
        return min((stop for stop in stops if start < stop < end), default=end), 0

    def _exported(self, start: int, end: int, goal: int) -> int:
        """The last unit boundary before `goal`, where the chunk can export it to a table slot that nothing else uses."""
        if not self.checkpoints or end < goal or start % self.unit:
            return 0
        slots = (end - 1) // self.grid - (start - 1) // self.grid
        position = self._last(goal, self.unit)
        return position if slots >= 2 and position > start else 0

    @staticmethod
    def _last(length: int, grain: int) -> int:
        return (length - 1) // grain * grain
