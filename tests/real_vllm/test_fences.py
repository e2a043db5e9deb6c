"""How long vLLM's list of deferred frees keeps a block: `kvproof.proofs.liveness.queue`, on the real scheduler.

Endpoints of copies are fenced as of the step that comes next. A step without tokens is not counted, so if it carries copies
their fence is a step that need not come: here it never does, since whoever waits needs the blocks behind the fence.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvproof.audit.prelude_vllm import Engine
from kvproof.audit.targets.vllm_target import VllmTarget

pytestmark = pytest.mark.vllm

SHOWN = ("0.31", "0.32", "0.33")  # releases in which this very run ends in a hang


def run(*, fences: bool, names: str = "ab") -> tuple[Any, list[int]]:
    """Two requests under the priority policy, two steps in flight, a pool that is large enough for each of them alone. The
    engine after 40 steps, and the copies and tokens of the step in which both are preempted."""
    engine = Engine(
        groups=[8] * 4, unit=2, blocks=13, budget=16, seqs=4, length=22, retention=0, depth=2, fences=fences, policy="priority"
    )
    empty: list[int] = []
    if "a" in names:
        engine.add("a", range(13), max_tokens=8, priority=2)
        engine.step()
    if "b" in names:
        engine.add("b", range(100, 105), max_tokens=8, priority=0)
    for _ in range(40):
        out = engine.step()
        if engine.copies[-1] and not out.total_num_scheduled_tokens:
            empty.append(len(engine.copies[-1]))
    while engine.flying:
        engine.pop()
    return engine, empty


def test_a_fence_waits_for_a_step_that_never_comes() -> None:
    engine, empty = run(fences=True)
    scheduler = engine.scheduler
    if not VllmTarget().release.startswith(SHOWN):
        assert not scheduler.deferred_frees
        return
    assert empty == [3]
    assert [(fence, len(blocks)) for fence, blocks in scheduler.deferred_frees] == [(scheduler.sched_step_seq + 1, 6)]
    assert scheduler.processed_step_seq == scheduler.sched_step_seq  # nothing is in flight
    assert sorted(scheduler.requests) == ["a", "b"]
    assert scheduler.has_unfinished_requests()


@pytest.mark.parametrize(("fences", "names"), [(False, "ab"), (True, "a"), (True, "b")])
def test_without_the_fence_or_alone_they_finish(fences: bool, names: str) -> None:
    engine, _ = run(fences=fences, names=names)
    assert not engine.scheduler.has_unfinished_requests()
    assert engine.pool.get_num_free_blocks() == 12
