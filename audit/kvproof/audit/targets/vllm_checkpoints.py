"""The states that a vLLM worker exports at an inner boundary of a chunk (0.32 and later), worked out as the worker does.

No record tells a worker about them: its attention backend derives position and block from the chunk and the block table
(vllm/model_executor/layers/mamba/checkpoint.py). We call that function, so a worker and a scheduler that disagree are seen.
They do, under sparse retention: for a chunk that is not a prompt's last one the scheduler keeps no block, the table has 0
there, and the worker's kernel (mamba/ops/ssd_checkpoint.py) writes to the null block. Such an export has block 0 here too.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import Any

from kvproof.audit.target import TargetUnavailable
from kvproof.spec.geometry import Geometry, Group
from kvproof.spec.records import Checkpoint, Row, Step

MODULE = "vllm.model_executor.layers.mamba.checkpoint"

Compute = Callable[..., tuple[list[int], list[int]]]


class Checkpoints:
    """Follows the worker's block tables of the groups that export checkpoints. Made by `of`."""

    def __init__(self, geometry: Geometry, scheduler: Any, compute: Compute) -> None:
        fine = scheduler.kv_cache_manager.coordinator.enable_partial_hash_hits
        specs = scheduler.kv_cache_config.kv_cache_groups
        self._unit = geometry.unit
        self._hits = geometry.unit if fine else geometry.scheduler_block  # the grid that hits end on
        self._groups = [
            (group, specs[group.index].kv_cache_spec.prefill_checkpoint_alignment)
            for group in geometry.states
            if group.checkpoint
        ]
        self._compute = compute
        self._tables: dict[str, list[list[int]]] = {}

    @classmethod
    def of(cls, geometry: Geometry, scheduler: Any) -> Checkpoints | None:
        """None where no group exports checkpoints. Raises `TargetUnavailable` where the worker's function is missing."""
        if not any(group.checkpoint for group in geometry.states):
            return None
        try:
            compute = import_module(MODULE).compute_mamba_prefill_checkpoints
        except (ImportError, AttributeError) as error:
            raise TargetUnavailable(f"{MODULE}.compute_mamba_prefill_checkpoints is missing ({error})") from error
        if "cache_hit_alignment_tokens" not in signature(compute).parameters:
            raise TargetUnavailable(
                f"{MODULE}.compute_mamba_prefill_checkpoints takes no cache_hit_alignment_tokens: "
                "drive checkpoint groups on 0.32 or later"
            )
        return cls(geometry, scheduler, compute)

    def of_step(self, step: Step) -> list[Checkpoint]:
        for request in step.finished:
            self._tables.pop(request, None)
        return [checkpoint for row in step.rows for checkpoint in self._of_row(row)]

    def _of_row(self, row: Row) -> list[Checkpoint]:
        if row.table is not None:
            self._tables[row.request] = [list(blocks) for blocks in row.table]
        elif row.appended is not None:
            for blocks, more in zip(self._tables[row.request], row.appended, strict=True):
                blocks.extend(more)
        made = (self._of_group(row, group, alignment) for group, alignment in self._groups)
        return [checkpoint for checkpoint in made if checkpoint is not None]

    def _of_group(self, row: Row, group: Group, alignment: int) -> Checkpoint | None:
        if row.count < 2:
            return None
        (offset,), (column,) = self._compute(
            [row.stop],
            [row.count],
            hash_block_size=self._unit,
            mamba_block_size=group.block_size,
            checkpoint_alignment=alignment,
            drop_eagle_block=False,
            cache_hit_alignment_tokens=self._hits,
        )
        if not offset:
            return None
        return Checkpoint(row.request, group.index, self._tables[row.request][group.index][column], row.start + offset)
