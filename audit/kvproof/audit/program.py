"""Programs: what clients do to an engine, as data that can be stored, replayed and cut down.

Every operation is legal at every moment: one that does not apply (aborting an unknown id, completing with nothing in
flight, adding an id that is still alive) does nothing. So any subsequence of a program is a program.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from kvproof.spec.geometry import Kind
from kvproof.spec.records import Config, Extras

Run = tuple[int, int]  # start, stop: consecutive token ids, stop not included


class Operation(msgspec.Struct, frozen=True, tag_field="do", omit_defaults=True, forbid_unknown_fields=True):
    """One thing that a client or the harness does."""


class Add(Operation, frozen=True, tag="add"):
    """A request arrives.

    prompt: token ids as runs. after: the prompt starts with all that this earlier request said, its prompt and answer.
    outside, ordered, save, drafts: see `kvproof.spec.records.Extras`; engines without a connector and a drafter get a plain
    request. fails: a load that is part of a step turns out to have failed.
    """

    id: str
    prompt: tuple[Run, ...]
    max_tokens: int
    priority: int = 0
    salt: str | None = None
    after: str | None = None
    outside: int = 0
    ordered: bool = False
    save: bool = False
    drafts: int = 0
    fails: bool = False

    @property
    def extras(self) -> Extras:
        return Extras(self.outside, self.ordered, self.save, self.drafts)

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for start, stop in self.prompt for token in range(start, stop))


class Abort(Operation, frozen=True, tag="abort"):
    """The client of a request went away."""

    id: str


class Schedule(Operation, frozen=True, tag="schedule"):
    """One scheduler iteration; the oldest step in flight completes before it where the pipeline is full."""


class Complete(Operation, frozen=True, tag="complete"):
    """The results of the oldest step in flight come in."""


class ResetCache(Operation, frozen=True, tag="reset_cache"):
    """The prefix cache is emptied, as after a change of weights."""


class EndLoad(Operation, frozen=True, tag="end_load"):
    """An outside load beside the steps is over; `ok` says whether it brought what it should."""

    id: str
    ok: bool = True


class EndSave(Operation, frozen=True, tag="end_save"):
    """The oldest job that saves blocks of a finished request is done."""


class Take(Operation, frozen=True, tag="take"):
    """Pool alone: one block leaves the free queue for a new holder."""


class Key(Operation, frozen=True, tag="key"):
    """Pool alone: a held block is registered for a text of its own."""

    block: int


class Hit(Operation, frozen=True, tag="hit"):
    """Pool alone: a registered block gets one more holder."""

    block: int


class Free(Operation, frozen=True, tag="free"):
    """Pool alone: one holder of a block gives it back; misuse where it has none."""

    block: int


AnyOperation = Add | Abort | Schedule | Complete | ResetCache | EndLoad | EndSave | Take | Key | Hit | Free


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A configuration and what happens under it. At its end the engine is driven until nobody waits or runs."""

    config: Config
    operations: tuple[AnyOperation, ...]

    def with_operations(self, operations: Sequence[AnyOperation]) -> Program:
        return Program(self.config, tuple(operations))

    @property
    def adds(self) -> list[Add]:
        return [operation for operation in self.operations if isinstance(operation, Add)]


def runs(tokens: Iterable[int]) -> tuple[Run, ...]:
    """Tokens as runs of consecutive ids, as few as possible."""
    out: list[list[int]] = []
    for token in tokens:
        if out and out[-1][1] == token:
            out[-1][1] += 1
        else:
            out.append([token, token + 1])
    return tuple((start, stop) for start, stop in out)


def least_pool(config: Config) -> int:
    """The smallest pool in which one request of `max_model_len` tokens runs: blocks, null block included.

    A state group needs the running block and the one that the next chunk goes to, a boundary inside a block one more for
    the copy, and an exported checkpoint one more.
    """
    geometry = config.geometry
    need = 1
    for group in geometry.groups:
        if group.kind is Kind.APPEND_ONLY:
            need += group.blocks_for(config.max_model_len) + 1
        else:
            need += 3 + group.checkpoint
    return need


def impossible(config: Config) -> str | None:
    """Why no engine could serve this configuration, or None where one can. What is possible is left to the target."""
    scheduler_block = config.geometry.scheduler_block
    if config.depth < 1 or config.max_seqs < 1:
        return f"depth {config.depth} and max_seqs {config.max_seqs} must be positive"
    if config.max_batched_tokens < scheduler_block:
        return (
            f"max_batched_tokens {config.max_batched_tokens} is less than the scheduler block {scheduler_block}: "
            "a state group could never end a block"
        )
    if config.geometry.num_blocks < least_pool(config):
        return (
            f"num_blocks {config.geometry.num_blocks} cannot hold one request of max_model_len {config.max_model_len}: "
            f"use at least {least_pool(config)}"
        )
    return None
