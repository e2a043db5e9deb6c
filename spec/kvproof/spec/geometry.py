"""The sizes that everything else is measured in: groups, block sizes and the unit.

All sizes are in tokens, all pools in blocks. Block 0 is the null block and belongs to nobody, so a pool of
`num_blocks` blocks has `num_blocks - 1` to give.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import gcd, lcm

from kvproof.spec.errors import GeometryError

NULL_BLOCK = 0


class Kind(StrEnum):
    """How the bytes of a group's blocks age."""

    APPEND_ONLY = "append_only"  # full attention: the bytes of token i never change
    STATE = "state"  # Mamba "align": one recurrent state per block, exact after n tokens


@dataclass(frozen=True, slots=True)
class Group:
    """One KV-cache group. `checkpoint` says that the group's kernels can export the state at one inner boundary of a chunk."""

    index: int
    kind: Kind
    block_size: int
    checkpoint: bool = False

    def blocks_for(self, tokens: int) -> int:
        """Number of table slots that `tokens` tokens reach into."""
        return -(-tokens // self.block_size)


@dataclass(frozen=True, slots=True)
class Geometry:
    """Groups over one pool of blocks.

    unit: grain of prefix hashes (`prefix_match_unit`); the gcd of the block sizes where None is given to `of`.
    retention: which block boundaries of a state group are kept for later hits: None keeps all (dense), 0 only
        the replay boundary of the prompt and observed junctions (vLLM's default since 0.30).
    """

    groups: tuple[Group, ...]
    unit: int
    num_blocks: int
    retention: int | None = None

    @classmethod
    def of(
        cls,
        append_only: int,
        states: tuple[int, ...] = (),
        *,
        unit: int | None = None,
        num_blocks: int = 64,
        retention: int | None = None,
        checkpoint: bool = False,
    ) -> Geometry:
        """One append-only group of the given block size, then one state group per size in `states`."""
        groups = [Group(0, Kind.APPEND_ONLY, append_only)]
        groups += [Group(i, Kind.STATE, size, checkpoint) for i, size in enumerate(states, start=1)]
        sizes = [group.block_size for group in groups]
        return cls(tuple(groups), gcd(*sizes) if unit is None else unit, num_blocks, retention)

    def __post_init__(self) -> None:
        for position, group in enumerate(self.groups):
            if group.index != position:
                raise GeometryError(f"group {group.index} is at position {position}: number the groups from 0 in order")
            if group.block_size < 1:
                raise GeometryError(f"group {group.index}: block size {group.block_size} is not positive")
            if self.unit < 1 or group.block_size % self.unit:
                raise GeometryError(
                    f"unit {self.unit} does not divide block size {group.block_size} of group {group.index}: "
                    f"choose a divisor of {gcd(*(g.block_size for g in self.groups))}"
                )
        if self.num_blocks < 2:
            raise GeometryError(f"num_blocks {self.num_blocks}: a pool needs the null block and at least one more")
        if self.retention is not None and (self.retention < 0 or self.retention % self.scheduler_block):
            raise GeometryError(
                f"retention {self.retention} is negative or not a multiple of the scheduler block {self.scheduler_block}: "
                "use 0, None or such a multiple"
            )

    @property
    def scheduler_block(self) -> int:
        """The least common multiple of the block sizes: where every group ends a block."""
        return lcm(*(group.block_size for group in self.groups))

    @property
    def states(self) -> tuple[Group, ...]:
        return tuple(group for group in self.groups if group.kind is Kind.STATE)

    @property
    def fine(self) -> bool:
        """Whether hits may end inside a block: a state group whose block is longer than the unit."""
        return any(group.block_size > self.unit for group in self.states)
