"""Two real hybrid models, configured by the installed vLLM itself: `qwen3-next` and `granite`.

The way that an engine takes when it starts (vllm/v1/engine/core.py, EngineCore._initialize_kv_caches), with the model's
full dimensions and no weights: EngineArgs.create_engine_config, the model on the meta device, each layer's own
get_kv_cache_spec, update_block_size_for_backend, get_kv_cache_configs, resolve_kv_cache_block_sizes, Scheduler. Nothing is
patched in afterwards but the limits of a `Config` and the number of blocks. What the machine lacks is stubbed: `STUBS`.

Block sizes depend on the attention back end: the stubs choose what a GPU would get. Other sizes than those are refused.
Dimensions are from the models' public config.json.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any
from unittest.mock import patch

from kvproof.audit.target import TargetUnavailable
from kvproof.audit.targets.vllm_build import (
    Vllm,
    assemble,
    known,
    limited,
    load,
    model_folder,
    parameters,
    undisturbed,
    with_events,
)
from kvproof.spec.errors import GeometryError
from kvproof.spec.geometry import Geometry, Group, Kind
from kvproof.spec.records import Config

UNIT = 16
MEMORY = 8 << 30  # bytes that the pool may take; only its number of blocks follows from it
BACKEND = "vllm.v1.attention.backends.flash_attn.FlashAttentionBackend"

STUBS = (
    f"the platform answers {BACKEND} for every attention layer",
    "torch.cpu._is_avx512_bf16_supported and torch.cpu._is_amx_tile_supported answer False",
    "update_block_size_for_backend is that of the base platform, not that of the CPU",
    "the KV-cache layout is set to LBHNC, which the worker would answer",
    f"{MEMORY >> 30} GiB of memory for the pool, which the worker would measure",
)

_QWEN3_NEXT = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000000,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}

_GRANITE = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "attention_multiplier": 0.0078125,
    "bos_token_id": 100257,
    "embedding_multiplier": 12,
    "eos_token_id": 100257,
    "hidden_act": "silu",
    "hidden_size": 1536,
    "intermediate_size": 512,
    "layer_types": ["attention" if layer % 10 == 5 else "mamba" for layer in range(40)],
    "logits_scaling": 6,
    "mamba_chunk_size": 256,
    "mamba_d_conv": 4,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 48,
    "max_position_embeddings": 131072,
    "normalization_function": "rmsnorm",
    "num_attention_heads": 12,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 40,
    "num_key_value_heads": 4,
    "num_local_experts": 64,
    "pad_token_id": 100256,
    "position_embedding_type": "nope",
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000,
    "shared_intermediate_size": 1024,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 100352,
}

# name: model, block size of all groups, number of state groups
_MODELS: dict[str, tuple[dict[str, Any], int, int]] = {
    "qwen3-next": (_QWEN3_NEXT, 544, 3),
    "granite": (_GRANITE, 400, 9),
}
PRESETS = tuple(_MODELS)


@dataclass(frozen=True, slots=True)
class Preset:
    """A configuration that vLLM made. `geometry` describes it, with the blocks and the retention that vLLM chose.

    `VllmTarget(build=preset.build)` drives it.
    """

    name: str
    release: str
    vllm_config: Any
    kv_cache_config: Any
    scheduler_block: int
    geometry: Geometry
    stubs: tuple[str, ...] = STUBS

    def build(self, config: Config) -> Any:
        """A scheduler for `config`, whose geometry is ours but for the number of blocks and the retention."""
        wanted = config.geometry
        if replace(self.geometry, num_blocks=wanted.num_blocks, retention=wanted.retention) != wanted:
            raise GeometryError(f"preset {self.name}: only num_blocks and retention of its geometry may be changed")
        # Where there is no such field, `assemble` sets a variable of the environment.
        retention = known(type(self.kv_cache_config), prefix_cache_retention_interval=wanted.retention)
        pool = replace(self.kv_cache_config, num_blocks=wanted.num_blocks, **retention)
        return assemble(config, limited(self.vllm_config, config), pool, self.scheduler_block)


@cache
def preset(name: str) -> Preset:
    """Configure a model with the installed vLLM: some seconds, once. `name` is one of `PRESETS`.

    Raises `TargetUnavailable` in one line where this release cannot do it, or yields other sizes than a GPU would get.
    """
    if name not in _MODELS:
        raise GeometryError(f"no preset is named {name!r}: use one of {', '.join(PRESETS)}")
    vllm = load()
    model, _, _ = _MODELS[name]
    try:
        with _stubbed(), undisturbed(), model_folder(model) as folder:
            made = _configure(vllm, name, folder)
    except TargetUnavailable:
        raise
    except Exception as error:  # whatever vLLM raises on its long way: a model that needs a package, a missing kernel
        lines = str(error).strip().splitlines() or [""]
        reason = f"{type(error).__name__}: {lines[0]}"
        raise TargetUnavailable(f"vllm {vllm.release} cannot configure the preset {name} here ({reason})") from error
    _check_sizes(made)
    return made


@contextlib.contextmanager
def _stubbed() -> Iterator[None]:
    """What the machine lacks, see `STUBS`."""
    cpu = import_module("torch").cpu
    platform = type(import_module("vllm.platforms").current_platform)
    logger = logging.getLogger("vllm")
    level = logger.level
    platform.import_kernels()  # those of this processor, before the stubs deny some of it: a second library would abort
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(platform, "import_kernels", classmethod(lambda _: None)))
        stack.enter_context(patch.object(platform, "get_attn_backend_cls", classmethod(lambda *_, **__: BACKEND)))
        for probe in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
            stack.enter_context(patch.object(cpu, probe, lambda: False))
        stack.callback(logger.setLevel, level)
        logger.setLevel(logging.CRITICAL)
        yield


def _configure(vllm: Vllm, name: str, folder: str) -> Preset:
    _register(_MODELS[name][0]["architectures"][0])
    made = _engine_config(folder)
    with _model(made, folder):
        base = import_module("vllm.platforms.interface").Platform
        platform = type(import_module("vllm.platforms").current_platform)
        base.update_block_size_for_backend.__func__(platform, made)
        pool = _pool(made, _specs(made))
    made.cache_config.num_gpu_blocks = pool.num_blocks
    made.cache_config.block_size = min(group.kv_cache_spec.block_size for group in pool.kv_cache_groups)
    made.validate_block_size()
    scheduler_block, unit = vllm.get("utils", "resolve_kv_cache_block_sizes")(pool, made)
    with_events(vllm, made)
    return Preset(name, vllm.release, made, pool, scheduler_block, _geometry(vllm, name, pool, unit))


def _register(architecture: str) -> None:
    """Import the model's class here. vLLM would start a process to look at it, and import it here afterwards."""
    registry = import_module("vllm.model_executor.models").ModelRegistry
    registry.register_model(architecture, registry.models[architecture].load_model_cls())


def _engine_config(folder: str) -> Any:
    make = import_module("vllm.engine.arg_utils").EngineArgs
    return make(
        **known(
            make,
            model=folder,
            skip_tokenizer_init=True,
            load_format="dummy",
            enforce_eager=True,
            dtype="bfloat16",
            max_model_len=32768,
            enable_prefix_caching=True,
            mamba_cache_mode="align",  # what both have by default, but for Granite on 0.27 and before
            prefix_match_unit=UNIT,
        )
    ).create_engine_config()


@contextlib.contextmanager
def _model(made: Any, folder: str) -> Iterator[None]:
    """The model without weights, on the meta device. Its layers register themselves in the configuration."""
    torch = import_module("torch")
    distributed = import_module("vllm.distributed")
    parallel = import_module("vllm.distributed.parallel_state")
    initialize: Callable[..., Any] = import_module("vllm.model_executor.model_loader.utils").initialize_model
    with import_module("vllm.config").set_current_vllm_config(made):
        distributed.init_distributed_environment(
            world_size=1, rank=0, distributed_init_method=f"file://{folder}/ranks", local_rank=0, backend="gloo"
        )
        try:
            distributed.ensure_model_parallel_initialized(1, 1)
            with torch.device("meta"):
                initialize(vllm_config=made, model_config=made.model_config)
            yield
        finally:
            parallel.destroy_model_parallel()
            parallel.destroy_distributed_environment()


def _specs(made: Any) -> dict[str, Any]:
    """What each layer says that it needs, as GPUModelRunner.get_kv_cache_spec collects it."""
    layers = import_module("vllm.config").get_layers_from_vllm_config(
        made, import_module("vllm.model_executor.layers.attention_layer_base").AttentionLayerBase
    )
    specs = {name: layer.get_kv_cache_spec(made) for name, layer in layers.items()}
    return {name: spec for name, spec in specs.items() if spec is not None}


def _pool(made: Any, specs: dict[str, Any]) -> Any:
    """The scheduler's KVCacheConfig. 0.33 moved the functions to kv_cache_planning and made the groups an argument."""
    made.cache_config.kv_cache_layout = "LBHNC"
    configs = _planning("get_kv_cache_configs")
    more = {}
    if "global_kv_cache_groups" in parameters(configs):
        more["global_kv_cache_groups"] = _planning("get_global_kv_cache_groups")(made, [specs])
    return _planning("generate_scheduler_kv_cache_config")(configs(made, [specs], [MEMORY], **more))


def _planning(name: str) -> Callable[..., Any]:
    for module in ("vllm.v1.core.kv_cache_planning", "vllm.v1.core.kv_cache_utils"):
        with contextlib.suppress(ImportError):
            found: Callable[..., Any] | None = getattr(import_module(module), name, None)
            if found is not None:
                return found
    raise TargetUnavailable(f"vllm.v1.core has no {name}")


def _geometry(vllm: Vllm, name: str, pool: Any, unit: int) -> Geometry:
    kinds = {"FullAttentionSpec": Kind.APPEND_ONLY, "MambaSpec": Kind.STATE}
    groups = []
    for index, group in enumerate(pool.kv_cache_groups):
        spec = group.kv_cache_spec
        kind = kinds.get(type(spec).__name__)
        if kind is None:
            raise TargetUnavailable(f"preset {name} on vllm {vllm.release}: group {index} is a {type(spec).__name__}")
        checkpoint = getattr(spec, "num_prefill_checkpoint_blocks", 0) > 0
        groups.append(Group(index, kind, spec.block_size, checkpoint))
    retention = getattr(pool, "prefix_cache_retention_interval", None)
    return Geometry(tuple(groups), unit, pool.num_blocks, retention)


def _check_sizes(made: Preset) -> None:
    _, size, states = _MODELS[made.name]
    sizes = [group.block_size for group in made.geometry.groups]
    found = (sizes, made.scheduler_block, made.geometry.unit, len(made.geometry.states))
    if found != ([size] * (states + 1), size, UNIT, states):
        raise TargetUnavailable(
            f"preset {made.name} on vllm {made.release}: expected {states} state groups and one attention group of "
            f"{size} tokens with unit {UNIT}; got block sizes {sizes}, {found[3]} of them states, scheduler block "
            f"{made.scheduler_block}, unit {made.geometry.unit}"
        )
