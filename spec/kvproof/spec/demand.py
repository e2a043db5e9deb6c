"""How many free blocks an allocation may take at most, before it takes any.

An allocation gives a request table slots for `stop` tokens. In every group it first holds the hits, which takes those
that nobody held out of the free blocks. Then it acquires

    a block for each new slot of an append-only group; of a state group for the last one only, the others are null gaps
    a private copy, where the hit ends inside a block
    a block that the snapshot of a running request moves to
    a block for a state that the chunk exports at an inner position

This serves one rule: an allocation whose demand exceeds the free blocks changes nothing, and any other one succeeds.

vLLM: SingleTypeKVCacheManager.get_num_blocks_to_allocate and MambaManager.get_num_blocks_to_allocate in
vllm/v1/core/single_type_kv_cache_manager.py, summed by KVCacheCoordinator.get_num_blocks_to_allocate in
vllm/v1/core/kv_cache_coordinator.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvproof.spec.geometry import Group, Kind


@dataclass(frozen=True, slots=True)
class Ask:
    """What one group is asked for.

    held: slots in the request's table before, null gaps included; 0 for a new or resumed request.
    start: tokens computed before, hits included. stop: tokens that need a slot. Both count from the start of the text.
    hits: slots that prefix hits fill, null gaps included. unheld: blocks among them that nobody holds.
    snapshot: a state of this running request is published in the block that it goes on writing, so its keys move.
    checkpoint: the chunk exports an inner state (`chunks.checkpoint_position`). Both are for state groups only.
    """

    group: Group
    held: int
    start: int
    stop: int
    hits: int = 0
    unheld: int = 0
    snapshot: bool = False
    checkpoint: bool = False

    @property
    def partial(self) -> bool:
        """Whether the hit ends inside a block, which the request may then not write."""
        return self.hits > 0 and self.start % self.group.block_size != 0


def demand(ask: Ask) -> int:
    """Free blocks that one group's allocation takes at most; what it takes exactly, if hits and table are as asked."""
    missing = max(ask.group.blocks_for(ask.stop) - ask.held - ask.hits, 0)
    if ask.group.kind is Kind.STATE:
        missing = min(missing, 1 + ask.checkpoint) + ask.snapshot
    return missing + ask.partial + ask.unheld


def total_demand(asks: Iterable[Ask]) -> int:
    """Free blocks that an allocation over all groups takes at most.

    The sum is as exact as its parts, as long as the hits of all groups are held before anything is acquired: else one
    group acquires what another one hit.
    """
    return sum(demand(ask) for ask in asks)
