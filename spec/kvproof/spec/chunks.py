"""Where a step stops a prefill, so that states can be kept.

A recurrent state exists only where a chunk ends. Chunk ends are therefore steered onto positions that a later request
can resume at:

    the grid       multiples of `block`, where every state group ends a block and the state is in its slot for good
    the last block (length - 1) // block * block: the last grid position that leaves a token to compute
    the tail       (prompt - 1) // unit * unit: what the same prompt can hit again, and a longer one too
    the junction   where another text was seen to part from this one
    the end        of the prefill; from there on decoding moves the state

All positions and sizes are in tokens. With block 512, unit 32, a prompt of 10,000 and 8,192 tokens per step the chunks
are 8192, 1536, 256, 16: they end on the grid, at the last block, at the tail and at the end.

vLLM: Scheduler._mamba_block_aligned_split in vllm/v1/core/sched/scheduler.py, get_mamba_prefill_checkpoint_position and
is_mamba_prefill_checkpoint_valid in vllm/v1/kv_cache_interface.py, 0.32. `chunk` gives the same numbers but for one
case: a junction on the way of a chunk with a checkpoint, where vLLM drops the stop on the grid as well.
"""

from __future__ import annotations

from math import lcm

from kvproof.spec.geometry import Geometry
from kvproof.spec.records import Config


def grid(geometry: Geometry) -> int:
    """What chunk ends are aligned to, in tokens: the least common multiple of the state groups' block sizes.

    Each of its multiples ends a block of every state group, so all of them can keep the state there under a full key.
    Where hits end at multiples of the scheduler block only, that is the grid: a state anywhere else would serve nobody.

    vLLM takes `cache_config.block_size`, the smallest block of all groups. In all configurations that it yields this is
    the one block size of all state groups.
    """
    if not geometry.fine:
        return geometry.scheduler_block
    return lcm(*(group.block_size for group in geometry.states))


def prefill_end(prompt: int, length: int) -> int:
    """Where prefill ends: at the end of the prompt, or for a resumed request at the last token that it had sampled."""
    return max(prompt, length - 1)


def tail(prompt: int, unit: int) -> int:
    """The last unit boundary that leaves at least one token of the prompt to compute."""
    return (prompt - 1) // unit * unit


def junction_stop(junction: int, prompt: int, block: int, exact: bool) -> int:
    """Where to stop for a junction, 0 for nowhere: at it, or at the grid position before it.

    exact: whether a state inside a block may be kept for others, too. Behind the prompt it never is.
    """
    return junction if exact and junction <= prompt else junction // block * block


def cut(start: int, end: int, stop: int) -> int:
    """The end of a chunk [start, end) that does not run past `stop`."""
    return stop if start < stop < end else end


def checkpoint_position(start: int, stop: int, prompt: int, length: int, *, block: int, unit: int) -> int:
    """The inner position whose state a chunk [start, stop) may export, 0 for none; for `checkpoint` groups.

    Only the chunk that ends the prefill exports. It starts at a unit boundary, and a whole block lies between the slot
    of its initial state and that of its last one, so that the exported state has a table slot of its own.
    """
    end = prefill_end(prompt, length)
    position = (end - 1) // unit * unit
    slots = (stop - 1) // block - (start - 1) // block
    return position if stop >= end and start % unit == 0 and start < position and slots >= 2 else 0


def chunk(
    start: int,
    wanted: int,
    prompt: int,
    length: int,
    *,
    block: int,
    unit: int,
    widest: int,
    junction: int = 0,
    checkpoint: bool = False,
) -> int:
    """Number of tokens to compute now, from 0 to `wanted`; 0 means to wait for a step with more budget.

    start: tokens computed before, hits included. wanted: what budget and text allow, at most length - start.
    prompt, length: tokens of the prompt and of all known text (a resumed request replays what it had sampled).
    block, unit: the grid, and the grain of hits (equal where hits end on the grid only).
    widest: the most that any step gives one request. That much always gets on.
    junction: from `junction_stop`. checkpoint: whether all state groups can export an inner state.

    A block that is wider than any step is crossed in several chunks, which end anywhere and keep nothing, and the chunk
    that reaches its boundary stops there. Else a chunk that ends before the prefill does ends on the grid, at the tail or
    at an exact junction: so once per block off the grid, twice where an exact junction shares the block of the tail.

    A chunk with a checkpoint runs on to the end even from inside a block. The slot that it started in keeps the state
    at `start`: whoever publishes must not take it for the state at the boundary that the chunk ran past.
    """
    if start >= prefill_end(prompt, length):
        return wanted
    end = start + wanted
    if end < prefill_end(prompt, length):
        floor = end // block * block
        if floor > start or block <= widest:
            end = max(floor, start)

    exports = checkpoint and checkpoint_position(start, end, prompt, length, block=block, unit=unit) > 0
    if exports and not start < junction < end:
        return end - start
    last = (length - 1) // block * block
    realign = -(-start // block) * block
    tail_stop = max(tail(prompt, unit), last)  # outgrown by a resumed text: then nothing but the last block
    for stop in (realign, last, tail_stop, junction):
        end = cut(start, end, stop)
    return end - start


def next_chunk(config: Config, start: int, wanted: int, prompt: int, length: int, junction: int = 0) -> int:
    """`chunk` as an engine of this configuration asks it. junction: as observed, `Hit.junction`.

    Without state groups every position can be resumed at, and a chunk takes what it wants.
    """
    geometry = config.geometry
    if not geometry.states:
        return wanted
    block = grid(geometry)
    return chunk(
        start,
        wanted,
        prompt,
        length,
        block=block,
        unit=geometry.unit if geometry.fine else block,
        widest=config.max_batched_tokens,
        junction=junction_stop(junction, prompt, block, config.junctions),
        checkpoint=all(group.checkpoint for group in geometry.states),
    )
