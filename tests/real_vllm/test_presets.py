"""The presets: vLLM's own configuration of two real hybrid models, and its scheduler on them with a small pool."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import pytest

from kvproof.audit.target import TargetUnavailable
from kvproof.audit.targets import vllm_presets
from kvproof.audit.targets.vllm_presets import PRESETS, STUBS, Preset, preset
from kvproof.audit.targets.vllm_target import VllmTarget
from kvproof.spec.errors import GeometryError
from kvproof.spec.geometry import Kind
from kvproof.spec.records import Config, Request, Step

pytestmark = pytest.mark.vllm

SIZES = {"qwen3-next": (544, 3), "granite": (400, 9)}


def made(name: str) -> Preset:
    """The preset. Only one reason not to have it is accepted: a wheel whose compiled operators this torch cannot load."""
    try:
        return preset(name)
    except TargetUnavailable as error:
        reason = str(error)
    if "'_C' object has no attribute" not in reason or "\n" in reason or name not in reason:
        pytest.fail(reason)
    pytest.skip(reason)


def run(target: VllmTarget, config: Config) -> Iterator[Step]:
    """Drives the target until nobody waits or runs."""
    flights: deque[Step] = deque()
    while target.busy() or flights:
        step = target.schedule()
        yield step
        if step.rows or step.copies:
            flights.append(step)
        while flights and (len(flights) >= config.depth or not step.rows):
            oldest = flights.popleft()
            target.complete(oldest, {row.request: 7 for row in oldest.rows if row.samples})


@pytest.mark.parametrize("name", PRESETS)
def test_sizes_are_those_of_a_gpu(name: str) -> None:
    found = made(name)
    size, states = SIZES[name]
    assert {group.block_size for group in found.geometry.groups} == {size}
    assert [group.kind for group in found.geometry.groups].count(Kind.STATE) == states
    assert len(found.geometry.states) == len(found.geometry.groups) - 1
    assert found.geometry.unit == 16
    assert found.geometry.fine
    assert found.geometry.retention == (None if found.release < "0.29" else 0)
    assert found.stubs == STUBS


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", PRESETS)
def test_a_shared_prefix_hits_inside_a_block(name: str, depth: int) -> None:
    found = made(name)
    size, states = SIZES[name]
    config = Config(
        replace(found.geometry, num_blocks=60), max_batched_tokens=2048, max_model_len=8192, depth=depth, fences=depth > 1
    )
    target = VllmTarget(build=found.build)
    target.reset(config)
    prefix = tuple(range(1, size + 160))  # one whole block and a part of the next, ending off the unit grid
    target.add(Request("first", prefix, max_tokens=3))
    first = list(run(target, config))
    target.add(Request("second", (*prefix, 9, 9, 9), max_tokens=3))
    second = list(run(target, config))
    row = second[0].rows[0]
    boundary = (len(prefix) - 1) // 16 * 16
    assert (row.request, row.start) == ("second", boundary)
    assert len(second[0].copies) == states + 1
    checkpoint = any(group.checkpoint for group in found.geometry.states)
    if checkpoint:
        assert next(step.rows[0].count for step in first if step.rows) == len(prefix)
        assert {made.position for step in first for made in step.checkpoints} == {boundary}
        assert {made.group for step in first for made in step.checkpoints} == set(range(states))
    else:
        assert [step.rows[0].stop for step in first if step.rows][:3] == [size, boundary, len(prefix)]
    seen = target.observe()
    assert seen is not None
    assert not any(seen.refs)
    assert not seen.leftovers


def test_only_blocks_and_retention_may_differ() -> None:
    found = made("granite")
    target = VllmTarget(build=found.build)
    target.reset(Config(replace(found.geometry, num_blocks=80, retention=None)))
    with pytest.raises(GeometryError, match="only num_blocks and retention"):
        target.reset(Config(replace(found.geometry, unit=8)))
    with pytest.raises(GeometryError, match="use one of qwen3-next, granite"):
        preset("llama")


def test_other_sizes_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    made("granite")
    monkeypatch.setattr(vllm_presets, "UNIT", 32)
    with pytest.raises(TargetUnavailable, match="granite") as caught:
        preset.__wrapped__("granite")  # 32 does not divide 400: vLLM itself refuses
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(vllm_presets, "UNIT", 8)
    monkeypatch.setitem(vllm_presets._MODELS, "granite", (vllm_presets._GRANITE, 416, 9))
    with pytest.raises(TargetUnavailable, match=r"expected 9 state groups .* of 416 .* got block sizes \[400"):
        preset.__wrapped__("granite")
