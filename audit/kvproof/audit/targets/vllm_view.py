"""Reads a vLLM block pool: counts, the free queue and both directions of the index (vllm/v1/core/block_pool.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvproof.audit.target import Hash

Entry = tuple[int, Hash]


class PoolView:
    """A look at one BlockPool. name: what a block hash is called, see `hash_name`."""

    def __init__(self, pool: Any, name: Callable[[bytes], Hash]) -> None:
        self._pool = pool
        self._name = name
        self._entries: dict[bytes, Entry] = {}

    def entry(self, key: bytes) -> Entry:
        """A key of the index as (group, name of the prefix). vLLM packs the hash, then the group in four bytes."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = int.from_bytes(key[-4:], "big"), self._name(key[:-4])
        return entry

    def keys(self, block: Any) -> list[Entry]:
        """Entries of a block that both the block and the index know."""
        first, block_id = block._block_hash, block.block_id
        others = self._pool.cached_block_hashes_by_block.get(block_id)
        if first is None and not others:
            return []
        contain = self._pool.cached_block_hash_to_block.contain
        entries = [self.entry(first)] if first is not None and contain(first, block_id) else []
        if others:
            entries += [self.entry(key) for key in sorted(others) if contain(key, block_id)]
        return entries

    def refs(self) -> list[int]:
        """Reference counts by block id. The null block's is given as 0: vLLM does not maintain it."""
        refs = [block.ref_cnt for block in self._pool.blocks]
        refs[self._pool.null_block.block_id] = 0
        return refs

    def free_queue(self) -> list[int]:
        """Block ids along the links of the free queue; cut off after one more than there are blocks, if it is a ring."""
        queue = self._pool.free_block_queue
        block, tail = queue.fake_free_list_head.next_free_block, queue.fake_free_list_tail
        found: list[int] = []
        while block is not None and block is not tail and len(found) <= len(self._pool.blocks):
            found.append(block.block_id)
            block = block.next_free_block
        return found

    def index(self) -> dict[Entry, list[int]]:
        """The blocks found under each entry, by the index."""
        found: dict[Entry, list[int]] = {}
        for key, blocks in self._pool.cached_block_hash_to_block._cache.items():
            ids = list(blocks) if isinstance(blocks, dict) else [blocks.block_id]
            found.setdefault(self.entry(key), []).extend(ids)
        return found

    def reverse(self) -> dict[int, list[Entry]]:
        """The entries of each block, by the blocks themselves."""
        found = {
            block.block_id: [self.entry(block._block_hash)] for block in self._pool.blocks if block._block_hash is not None
        }
        for block_id, keys in self._pool.cached_block_hashes_by_block.items():
            if keys:
                found.setdefault(block_id, []).extend(self.entry(key) for key in sorted(keys))
        return found
