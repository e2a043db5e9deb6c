"""The reference engine as a target."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from kvproof.audit.target import Hash, Observation, Op, OpKind, Result, TargetCrashed
from kvproof.reference.engine import PLAIN, Engine
from kvproof.reference.journal import Entry
from kvproof.spec.errors import GeometryError
from kvproof.spec.lineage import Path
from kvproof.spec.records import Config, Event, Extras, Load, Request, Step


class ReferenceTarget:
    """Drives one `Engine`. fault: name of a planted fault (`kvproof.reference.faults`), for tests of the checks."""

    name = "reference"

    def __init__(self, fault: str | None = None) -> None:
        self.fault = fault
        try:
            self.release = version("kvproof")
        except PackageNotFoundError:  # a source tree that is not installed
            self.release = "0"

    def reset(self, config: Config) -> None:
        self.engine = Engine(config, fault=self.fault, journal=True)
        self.unit = config.geometry.unit
        self.paths: dict[str, Path] = {}  # also of requests that ended: the last keys of one are named after its end

    def add(self, request: Request) -> None:
        self.add_with(request, PLAIN)

    def abort(self, request_id: str) -> None:
        with Crash():
            self.engine.abort(request_id)

    def schedule(self) -> Step:
        with Crash():
            return self.engine.schedule()

    def complete(self, step: Step, tokens: Mapping[str, int]) -> Result:
        return self.complete_with(step, {**tokens}, [])

    # What a connector and a drafter add: see `kvproof.audit.target.ConnectorTarget`.

    def add_with(self, request: Request, extras: Extras) -> None:
        self.engine.add(request, extras)
        self.paths[request.id] = self.engine.scheduler.sequences[request.id].path

    def complete_with(self, step: Step, tokens: Mapping[str, int | list[int]], failed: list[str]) -> Result:
        with Crash():
            return Result(*self.engine.complete(step, tokens, failed))

    def loads(self) -> list[Load]:
        return self.engine.loads()

    def end_load(self, request_id: str, succeeded: bool) -> None:
        with Crash():
            self.engine.end_load(request_id, succeeded)

    def saves(self) -> list[int]:
        return self.engine.saves()

    def end_save(self, job: int) -> None:
        with Crash():
            self.engine.end_save(job)

    def reset_cache(self) -> bool:
        with Crash():
            return self.engine.reset_cache()

    def busy(self) -> bool:
        return self.engine.busy()

    def events(self) -> list[Event]:
        return self.engine.events()

    def hashes(self, request_id: str, since: int = 0) -> list[Hash]:
        path = self.paths.get(request_id, ())
        return [path[n] for n in range((since + 1) * self.unit, len(path) + 1, self.unit)]

    def journal(self) -> list[Op]:
        return [op_of(entry) for entry in self.engine.journal()]

    def observe(self) -> Observation:
        scheduler = self.engine.scheduler
        pool, sequences = scheduler.pool, scheduler.sequences
        return Observation(
            refs=list(pool.refs),
            free_queue=pool.free_list(),
            index={(g, name): list(found) for g, names in enumerate(pool.index) for name, found in names.items()},
            tables={name: [list(table) for table in s.tables] for name, s in sequences.items() if any(s.tables)},
            pending_copies=[],
            deferred=[(step, list(blocks)) for step, blocks in scheduler.fences.entries],
            leftovers=scheduler.leftovers(),
            reverse={block: [(pool.group[block], name) for name in names] for block, names in enumerate(pool.keys) if names},
        )


class Crash:
    """What the engine raises in a legal operation is a finding."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, GeometryError):
            raise TargetCrashed(str(error)) from error


def op_of(entry: Entry) -> Op:
    """The same fields under the harness's name."""
    return Op(
        OpKind(entry.kind),
        entry.request,
        entry.start,
        entry.stop,
        entry.hit,
        entry.failed,
        entry.taken,
        entry.hits,
        entry.dropped,
        entry.tables,
        entry.copies,
        entry.refs,
        [(block, list(keys)) for block, keys in entry.keys],
        entry.deferred,
        entry.demand,
        entry.free_blocks,
    )
