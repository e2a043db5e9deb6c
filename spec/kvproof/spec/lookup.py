"""What a new request may skip: the longest prefix that every group can answer.

`keyed` says whether some block can be found under a key; a dict from keys to blocks serves as `keyed.get`. Nothing here
holds or acquires a block: the caller holds all hits of all groups before it acquires anything.

Lengths are in tokens. *grain* is where a hit may end: at any unit boundary where the geometry is fine, else at
multiples of the scheduler block.

vLLM: FullAttentionManager.find_longest_cache_hit and MambaManager.find_longest_cache_hit in
vllm/v1/core/single_type_kv_cache_manager.py, HybridKVCacheCoordinator.find_longest_cache_hit in
vllm/v1/core/kv_cache_coordinator.py, KVCacheManager.get_computed_blocks in vllm/v1/core/kv_cache_manager.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvproof.spec.geometry import Geometry, Group, Kind
from kvproof.spec.lineage import Key, Path

Keyed = Callable[[Key], object]  # true (blocks, a set of them, True) if the key can be found


@dataclass(frozen=True, slots=True)
class Hit:
    """length: tokens that need not be computed. junction: end of the longest append-only hit where it lies beyond
    `length`, else 0: another text parted from this one there, or a state was evicted, and a state kept there would have
    made a longer hit (Marconi, arXiv 2411.19379)."""

    length: int
    junction: int


def full_run(keyed: Keyed, path: Path, group: Group, limit: int) -> int:
    """End of the longest run of full blocks from the start of the text whose keys are all found, at most `limit`."""
    ends = range(group.block_size, limit + 1, group.block_size)
    beyond = (limit // group.block_size + 1) * group.block_size
    return next((end for end in ends if not keyed(path[end].key(group))), beyond) - group.block_size


def longest_append_only(keyed: Keyed, path: Path, group: Group, unit: int, limit: int) -> int:
    """Longest hit of an append-only group: a run of full blocks, then the highest keyed boundary in the next block.

    Downward closed: bytes of a longer prefix answer a shorter one, so the hit may be trimmed to any unit boundary.
    limit: the furthest boundary that is probed, at most the length of the text.
    """
    run = full_run(keyed, path, group, limit)
    inside = min(run + group.block_size - unit, limit // unit * unit)
    return next((n for n in range(inside, run, -unit) if keyed(path[n].key(group))), run)


def longest_state(keyed: Keyed, path: Path, group: Group, grain: int, limit: int) -> int:
    """Longest hit of a state group: the highest multiple of `grain`, at most `limit`, whose exact state is found.

    Not downward closed: a state answers its own prefix only.
    """
    return next((n for n in range(limit // grain * grain, 0, -grain) if keyed(path[n].key(group))), 0)


def common_hit(keyed: Keyed, path: Path, geometry: Geometry, reach: int | None = None) -> Hit:
    """The greatest hit that every group covers exactly, at most all but one token of the text.

    The last token is always computed, for its logits. Each round asks every state group for its longest hit at most the
    candidate; the candidate only shrinks, so the rounds end, and no length above it was ever covered by all.

    reach: how far append-only keys are probed. None is vLLM's choice, all but one token. `len(path)` finds more: where
    the text ends with a block whose inner keys were promoted away, the full key still answers all but the last unit of
    it.
    """
    most = max(len(path) - 1, 0)
    reach = most if reach is None else reach
    grain = geometry.unit if geometry.fine else geometry.scheduler_block
    append_only = [group for group in geometry.groups if group.kind is Kind.APPEND_ONLY]
    if geometry.fine:
        ends = [longest_append_only(keyed, path, group, geometry.unit, reach) for group in append_only]
    else:
        ends = [full_run(keyed, path, group, reach) for group in append_only]
    longest = min([most, *ends]) // grain * grain

    length, candidate = -1, longest
    while length != candidate:
        length = candidate
        for group in geometry.states:
            candidate = longest_state(keyed, path, group, grain, candidate)
    return Hit(length, longest if append_only and longest > length else 0)


def hit_keys(keyed: Keyed, path: Path, group: Group, unit: int, length: int, reach: int) -> list[Key | None]:
    """Where a group finds the blocks of a hit of `length` tokens: one key per table slot, None for a null gap.

    A state group takes the one block of its exact state and null gaps before it. An append-only group takes its full
    blocks, and for a hit that ends inside a block the highest keyed boundary of that block: it may lie beyond `length`.
    """
    slots = group.blocks_for(length)
    if group.kind is Kind.STATE:
        return [None] * (slots - 1) + [path[length].key(group)] * min(slots, 1)
    keys: list[Key | None] = [path[end].key(group) for end in range(group.block_size, length + 1, group.block_size)]
    if length % group.block_size:
        highest = min(slots * group.block_size, reach) // unit * unit
        ends = range(highest, length - 1, -unit)
        keys.append(next(key for key in (path[end].key(group) for end in ends) if keyed(key)))
    return keys
