"""A tiny engine for tests of the harness: one append-only group, no cache, one request at a time per step, planted bugs."""

from collections.abc import Mapping

from kvproof.audit.target import Hash, Observation, Op, Result, TargetCrashed
from kvproof.audit.workload import Shape, Yield
from kvproof.spec.geometry import Geometry
from kvproof.spec.records import Config, Event, Request, Row, Step

BUGS = ("steals", "silent", "stuck", "crashes")

FLAT = Shape("4", Yield.TWIN, Geometry.of(4, unit=2))  # the only kind of geometry that it serves


class Toy:
    """Runs the oldest request to its end. `steals`: a second request gets block 1 again while the first one uses it.
    `silent`: the worker is not told of aborts. `stuck`: nothing runs once three requests wait. `crashes`: on a reset.
    """

    name = "toy"
    release = "1"

    def __init__(self, bug: str | None = None) -> None:
        assert bug is None or bug in BUGS
        self.bug = bug
        self.resets = 0

    def reset(self, config: Config) -> None:
        self.resets += 1
        self.size = config.geometry.groups[0].block_size
        self.budget = config.max_batched_tokens
        self.free = list(range(1, config.geometry.num_blocks))
        self.waiting: dict[str, Request] = {}
        self.computed: dict[str, int] = {}
        self.said: dict[str, int] = {}
        self.tables: dict[str, list[int]] = {}
        self.ended: list[str] = []
        self.issued = 0

    def add(self, request: Request) -> None:
        self.waiting[request.id] = request
        self.computed[request.id] = self.said[request.id] = 0

    def abort(self, request_id: str) -> None:
        self._end(request_id, told=self.bug != "silent")

    def _end(self, request_id: str, told: bool = True) -> None:
        self.waiting.pop(request_id, None)
        self.free += [block for block in self.tables.pop(request_id, []) if block not in self.free]
        self.ended += [request_id] if told else []

    def schedule(self) -> Step:
        step = Step(self.issued + 1, finished=self.ended)
        self.ended = []
        if not self.waiting or (self.bug == "stuck" and len(self.waiting) >= 3):
            return step
        # With the bug the newest request runs first, on the blocks of the others.
        name = list(self.waiting)[-1 if self.bug == "steals" else 0]
        request, start = self.waiting[name], self.computed[name]
        total = len(request.prompt) + self.said[name]
        count = min(self.budget, total - start)
        if not count:
            return step
        new = name not in self.tables
        table = self.tables.setdefault(name, [])
        old = len(table)
        while len(table) * self.size < start + count:
            table.append(1 if self.bug == "steals" and not (table and self.free) else self.free.pop(0))
        self.issued += 1
        self.computed[name] = start + count
        samples = start + count == total
        step.rows.append(Row(name, start, count, samples, [table[:]] if new else None, None if new else [table[old:]]))
        return step

    def complete(self, step: Step, tokens: Mapping[str, int]) -> Result:
        result = Result(accepted={name: [token] for name, token in tokens.items() if name in self.waiting})
        for name in result.accepted:
            self.said[name] += 1
            if self.said[name] == self.waiting[name].max_tokens:
                self._end(name)
                result.finished.append(name)
        return result

    def reset_cache(self) -> bool:
        if self.bug == "crashes":
            raise TargetCrashed("no cache to empty")
        return True

    def busy(self) -> bool:
        return bool(self.waiting)

    def events(self) -> list[Event]:
        return []

    def hashes(self, request_id: str, since: int = 0) -> list[Hash]:
        return []

    def journal(self) -> list[Op]:
        return []

    def observe(self) -> Observation | None:
        return None
