"""Every check of the registry fires on a planted fault: a mutant of the reference engine, or a meddler with what it shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

import pytest

from kvproof.audit.checks import CHECKS
from kvproof.audit.program import Program
from kvproof.audit.session import run_program
from kvproof.audit.target import Hash, Observation, Op, OpKind, Result, TargetCrashed
from kvproof.audit.targets.reference import ReferenceTarget
from kvproof.audit.workload import random_program
from kvproof.reference.faults import FAULTS
from kvproof.spec.records import Copy, Event, Load, Step, Stored

TRIES = 60


class Meddler(ReferenceTarget):
    """Shows something else than the engine did, once; `done` says whether it had the chance."""

    def reset(self, config: object) -> None:
        super().reset(config)  # type: ignore[arg-type]
        self.done = False

    def schedule(self) -> Step:
        step = super().schedule()
        if not self.done:
            self.done = self.meddle(step)
        return step

    def meddle(self, step: Step) -> bool:
        return False

    def journal(self) -> list[Op]:
        ops = super().journal()
        if not self.done:
            self.done = self.meddle_ops(ops)
        return ops

    def meddle_ops(self, ops: list[Op]) -> bool:
        return False


class ReadLineage(Meddler):
    """The worker gets a hit table with two blocks exchanged."""

    def meddle(self, step: Step) -> bool:
        for row in step.rows:
            if row.table and row.start and len(row.table[0]) > 1:
                row.table = [list(row.table[0]), *row.table[1:]]
                row.table[0][0], row.table[0][1] = row.table[0][1], row.table[0][0]
                return True
        return False


class CopyBatch(Meddler):
    """Two copies of a step write the same block."""

    def meddle(self, step: Step) -> bool:
        if len(step.copies) < 2:
            return False
        step.copies[0] = Copy(step.copies[0].src, step.copies[1].dst)
        return True


class TableCovers(Meddler):
    """The worker is not told of an appended block."""

    def meddle(self, step: Step) -> bool:
        for row in step.rows:
            if row.appended and row.appended[0]:
                row.appended = [row.appended[0][:-1], *row.appended[1:]]
                return True
        return False


class RowContinues(Meddler):
    """A running request skips a token."""

    def meddle(self, step: Step) -> bool:
        for row in step.rows:
            if row.table is None and row.count > 1:
                row.start, row.count = row.start + 1, row.count - 1
                return True
        return False


class OutsideWriteRace(Meddler):
    """A load begins on blocks that a step in flight reads."""

    def meddle(self, step: Step) -> bool:
        rows = [row for row in self.flying.rows if row.table] if self.flying else []
        if rows and rows[0].table:
            empty: list[list[int]] = [[] for _ in rows[0].table[1:]]
            self.begun.append(Load(rows[0].request, 0, 1, False, [rows[0].table[0][:1], *empty]))
            return True
        self.flying = step
        return False

    def reset(self, config: object) -> None:
        super().reset(config)
        self.begun: list[Load] = []
        self.flying: Step | None = None

    def complete_with(self, step: Step, tokens: Mapping[str, int | list[int]], failed: list[str]) -> Result:
        if self.flying is step:
            self.flying = None
        return super().complete_with(step, tokens, failed)

    def loads(self) -> list[Load]:
        begun, self.begun = self.begun, []
        return begun

    def end_load(self, request_id: str, succeeded: bool) -> None: ...


class EndpointHeld(Meddler):
    """The endpoints of a copy wait for a step before the one that runs it."""

    def meddle_ops(self, ops: list[Op]) -> bool:
        for op in ops:
            if op.kind is OpKind.COPIES_OUT and op.deferred:
                op.deferred = [(until - 1, blocks) for until, blocks in op.deferred]
                return True
        return False


class NullInert(Meddler):
    """The null block is registered."""

    def meddle_ops(self, ops: list[Op]) -> bool:
        for op in ops:
            for _, entries in op.keys:
                if entries:
                    op.keys = [*op.keys, (0, entries)]
                    return True
        return False


class HashInjective(Meddler):
    """Every prefix has the same name."""

    def hashes(self, request_id: str, since: int = 0) -> list[Hash]:
        return ["the same" for _ in super().hashes(request_id, since)]


class NoOrphan(Meddler):
    """A request that ends leaves its table as it is."""

    def meddle_ops(self, ops: list[Op]) -> bool:
        for op in ops:
            if op.kind is OpKind.FREE:
                ops.remove(op)
                return True
        return False


class EventShape(Meddler):
    """A Stored event lacks a token."""

    def events(self) -> list[Event]:
        return [replace(e, tokens=e.tokens[:-1]) if isinstance(e, Stored) else e for e in super().events()]


class EngineAlive(Meddler):
    """The engine dies."""

    def meddle(self, step: Step) -> bool:
        raise TargetCrashed("planted") from RuntimeError("planted")


MEDDLERS: dict[str, Callable[[], Meddler]] = {
    "read-lineage": ReadLineage,
    "copy-batch": CopyBatch,
    "table-covers": TableCovers,
    "row-continues": RowContinues,
    "outside-write-race": OutsideWriteRace,
    "endpoint-held": EndpointHeld,
    "null-inert": NullInert,
    "hash-injective": HashInjective,
    "no-orphan": NoOrphan,
    "event-shape": EventShape,
    "engine-alive": EngineAlive,
}


def program(number: int) -> Program:
    """Programs in which there is something to meddle with: copies, fences, two steps in flight."""
    made = random_program(Random(f"checks/{number}"), ("cow", "async", "same-step")[number % 3])
    return made if number % 2 else Program(replace(made.config, fences=True, depth=2), made.operations)


def test_every_check_has_a_negative_test() -> None:
    assert MEDDLERS.keys() | {fault.breaks for fault in FAULTS.values()} == CHECKS.keys()


@pytest.mark.parametrize("check", MEDDLERS)
def test_a_check_fires(check: str) -> None:
    target = MEDDLERS[check]()
    for number in range(TRIES):
        found = {name for name, _ in run_program(target, program(number)).findings}
        if check in found:
            return
    pytest.fail(f"{check} never fired in {TRIES} programs")


def test_nothing_fires_on_what_the_engine_shows() -> None:
    """The control: the same programs, nobody meddles."""
    for number in range(12):
        assert not run_program(ReferenceTarget(), program(number)).findings


class LostReverse(ReferenceTarget):
    """A block forgets an entry under which the index has it."""

    def observe(self) -> Observation | None:
        seen = super().observe()
        assert seen is not None
        return replace(seen, reverse={block: entries[1:] for block, entries in (seen.reverse or {}).items()})


def test_the_index_is_held_against_the_reverse_index() -> None:
    signatures: set[tuple[str, str]] = set()
    for number in range(6):
        signatures |= run_program(LostReverse(), program(number)).findings.keys()
    assert signatures == {("index-agrees", "index and reverse index differ")}
