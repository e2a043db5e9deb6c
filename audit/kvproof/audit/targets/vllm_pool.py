"""A vLLM block pool on its own, for misuse that no scheduler commits: freeing twice, hitting what is free, and the like.

Drives vllm/v1/core/block_pool.py. Compare what `observe` says with a kernel that was driven by the same operations: no
count is negative, a block in the free queue has the count 0, and who gave a block back cannot give it back again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kvproof.audit.target import Hash, TargetCrashed
from kvproof.audit.targets.vllm_build import Requests, hash_name, known, load
from kvproof.audit.targets.vllm_target import crash
from kvproof.audit.targets.vllm_view import PoolView
from kvproof.spec.records import Request


@dataclass(slots=True)
class PoolObservation:
    """A pool without requests. refs: by block id, the null block as 0. free_queue: in order of reuse.

    free_blocks: length of the queue by the pool's own count. index and reverse: as in `Observation`.
    """

    refs: list[int]
    free_queue: list[int]
    free_blocks: int
    index: dict[tuple[int, Hash], list[int]]
    reverse: dict[int, list[tuple[int, Hash]]]


class VllmPool:
    """A pool of `num_blocks` blocks, block 0 the null block, with one group of `block_size` tokens per block.

    unit: tokens per hash. Operations take and return block ids. One that vLLM refuses, by raising, becomes
    `TargetCrashed`: for misuse this is what should happen, and the pool is as it was. `TargetUnavailable` as for
    `VllmTarget`.
    """

    GROUP = 0

    def __init__(self, num_blocks: int = 8, *, unit: int = 4, block_size: int | None = None) -> None:
        vllm = load()
        make = vllm.get("pool", "BlockPool")
        self._pool = make(num_blocks, True, unit, **known(make, enable_kv_cache_events=True))
        self._view = PoolView(self._pool, hash_name(vllm))
        self._requests = Requests(unit)
        self._texts: dict[tuple[int, ...], Any] = {}
        self._block_size = unit if block_size is None else block_size
        self.release = vllm.release

    def take(self, count: int) -> list[int]:
        """Take blocks from the front of the free queue; their keys go."""
        return [block.block_id for block in self._do(self._pool.get_new_blocks, count)]

    def hit(self, block: int) -> None:
        """One more reference, as a prefix hit gives it."""
        self._do(self._pool.touch, [self._pool.blocks[block]])

    def free(self, blocks: Iterable[int]) -> None:
        """Give blocks back, the first one to be reused first."""
        self._do(self._pool.free_blocks, [self._pool.blocks[block] for block in blocks])

    def key(self, table: Sequence[int], tokens: Iterable[int], start: int, stop: int) -> None:
        """Register slots [start, stop) of a table as full blocks of the text `tokens`."""
        self._do(
            self._pool.cache_full_blocks,
            request=self._text(tokens),
            blocks=[self._pool.blocks[block] for block in table],
            num_cached_blocks=start,
            num_full_blocks=stop,
            block_size=self._block_size,
            kv_cache_group_id=self.GROUP,
        )

    def key_partial(self, block: int, tokens: Iterable[int], length: int) -> None:
        """Register a block for the first `length` tokens of a text, which end inside the block."""
        self._do(
            self._pool.cache_partial_block,
            request=self._text(tokens),
            block=self._pool.blocks[block],
            num_tokens=length,
            kv_cache_group_id=self.GROUP,
            block_size=self._block_size,
        )

    def move(self, source: int, target: int) -> None:
        """Let the keys of one block point to another."""
        self._do(self._pool.move_block_hashes, self._pool.blocks[source], self._pool.blocks[target])

    def evict(self, block: int) -> None:
        """Take a block out of the index, whoever holds it."""
        self._do(self._pool.evict_blocks, {block})

    def reset(self) -> bool:
        """Empty the index; False where vLLM refuses since blocks are held."""
        done: bool = self._do(self._pool.reset_prefix_cache)
        return done

    def observe(self) -> PoolObservation:
        view = self._view
        return PoolObservation(
            refs=view.refs(),
            free_queue=view.free_queue(),
            free_blocks=self._pool.get_num_free_blocks(),
            index=view.index(),
            reverse=view.reverse(),
        )

    def _text(self, tokens: Iterable[int]) -> Any:
        prompt = tuple(tokens)
        if prompt not in self._texts:
            name = f"text{len(self._texts)}"
            self._texts[prompt] = self._requests.make(Request(name, prompt, 1), name)
        return self._texts[prompt]

    @staticmethod
    def _do(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except Exception as error:
            raise crash(error) from error


__all__ = ["PoolObservation", "TargetCrashed", "VllmPool"]
