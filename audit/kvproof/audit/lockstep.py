"""The lockstep of an engine and the specification: what the engine decides must be what the rules decide.

The monitor judges what an engine does to its pool, whatever made it do so. A lockstep also judges the choices behind it:
how long a hit is, where a chunk ends, how many blocks an allocation asks for. It asks `lookup`, `chunks` and `demand` of
the specification on the kernel's state just before each allocation. It is for engines that follow these policies to the
letter, above all the reference engine, whose own lookup, chunking and allocation share no line with them. Safety needs
none of this: an engine with other policies is no worse for it. Requests with outside loads or drafts are not judged.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvproof.audit.monitor import LOADS, Hashes, Life, Monitor
from kvproof.audit.target import Op, OpKind, Result
from kvproof.spec import chunks, demand, lookup
from kvproof.spec.faults import Fault, Severity
from kvproof.spec.geometry import Group, Kind
from kvproof.spec.lineage import Forest, Key, Path
from kvproof.spec.records import Config, Request, Step


class LockstepError(AssertionError):
    """Engine and specification end a chunk in different places."""

    def __init__(self, where: str, ruled: int, engine: int) -> None:
        super().__init__(f"{where}: the chunk ends at {ruled} by the specification, at {engine} by the engine")


class Lockstep(Monitor):
    """A monitor that also compares decisions. A hit or a demand that differs is a fault, a chunk raises `LockstepError`.

    known: tokens of each request's text, prompt and accepted samples. sampling: steps in flight that will sample for its
    present life. computed, junctions: where its last chunk ended and what the lookup saw, in this life. helped: requests
    that are not judged. Of the step that is being staged: the budget left, what each request was given of it, and what
    each met when it was first tried (it keeps its chunk when others are preempted for it); whether an allocation failed.
    """

    def __init__(self, config: Config, forest: Forest) -> None:
        super().__init__(config, forest)
        self.known: dict[str, int] = {}
        self.sampling: dict[str, set[int]] = {}
        self.computed: dict[str, int] = {}
        self.junctions: dict[str, int] = {}
        self.helped: set[str] = set()
        self.budget = 0
        self.given: dict[str, int] = {}
        self.met: dict[str, int] = {}
        self.failed = False

    def admit(self, request: Request) -> list[Fault]:
        self.known[request.id] = len(request.prompt)
        self.sampling[request.id] = set()
        self.helped.discard(request.id)
        return super().admit(request)

    def scheduled(self, ops: Iterable[Op], step: Step, hashes: Hashes) -> list[Fault]:
        self.budget, self.given, self.met, self.failed = self.config.max_batched_tokens, {}, {}, False
        self.helped.update(load.request for load in step.loads)
        self.helped.update(row.request for row in step.rows if row.drafts)
        faults = super().scheduled(ops, step, hashes)
        if not self.failed:
            self.judge_idle(step)
        for row in step.rows:
            if row.samples:
                self.sampling[row.request].add(step.number)
        return faults

    def completed(self, ops: Iterable[Op], step: Step, result: Result, hashes: Hashes) -> list[Fault]:
        for row in step.rows:
            self.sampling[row.request].discard(step.number)
        for request, tokens in result.accepted.items():
            self.known[request] += len(tokens)
        return super().completed(ops, step, result, hashes)

    def operate(self, op: Op, step: Step | None, hashes: Hashes) -> None:
        """Judges an allocation before the kernel takes it. Whoever leaves its table begins anew, and what it was given of the
        step that is being staged goes back to the budget."""
        life = self.lives.get(op.request or "")
        if life is not None and op.kind in LOADS:
            self.helped.add(life.request.id)
        elif life is not None and op.kind is OpKind.FREE:
            self.budget += self.given.pop(life.request.id, 0)
            self.computed.pop(life.request.id, None)
            self.sampling[life.request.id].clear()
        elif life is not None and op.kind is OpKind.ALLOCATE and op.stop > op.start:
            if life.request.id not in self.helped:
                self.judge(op, life)
            self.failed |= op.failed
            if not op.failed:
                self.given[life.request.id] = op.stop - op.start
                self.budget -= op.stop - op.start
                self.computed[life.request.id] = op.stop
        super().operate(op, step, hashes)

    # ------------------------------------------------------------------------------------------------------- the decisions

    def judge(self, op: Op, life: Life) -> None:
        """An allocation for tokens, as the kernel stands before it. One for an empty table follows a lookup in the same
        state, which probes keys up to the end of the text: a longer block answers a shorter hit."""
        name, new = life.request.id, not any(life.tables)
        life.text(self.known[name])
        path = life.path.first(self.known[name])  # that of a life may run ahead of what is known
        if new:
            found = lookup.common_hit(self.state.keyed.of, path, self.config.geometry, len(path))
            self.junctions[name] = found.junction
            if op.hit != found.length:
                what = f"the common hit of {name} is {found.length} tokens by the specification, {op.hit} by the engine"
                self.fault("hit-answers", what, "lookup differs", severity=Severity.WASTE if op.hit < found.length else None)
                return
        budget = self.met.setdefault(name, self.budget)
        ruled = self.next_stop(life, op.start, budget)
        if op.stop != ruled:
            raise LockstepError(f"allocate {name} from {op.start}, budget {budget}", ruled, op.stop)
        self.judge_demand(op, life, path, op.hit if new else 0)

    def next_stop(self, life: Life, start: int, budget: int) -> int:
        """Where the specification ends a chunk; `start` where there is nothing to compute now."""
        request, known = life.request, self.known[life.request.id]
        prompt = len(request.prompt)
        limit = min(prompt + request.max_tokens, self.config.max_model_len)
        wanted = min(known + len(self.sampling[request.id]), limit - 1) - start
        if wanted <= 0 or budget <= 0:
            return start
        junction = self.junctions[request.id]
        return start + chunks.next_chunk(self.config, start, min(wanted, budget), prompt, known, junction)

    def judge_idle(self, step: Step) -> None:
        """Whoever runs and got no chunk could get none: not even what the step left of its budget, which is no more than
        it met, makes one."""
        for name, start in self.computed.items():
            life = self.lives.get(name)
            if life is not None and name not in self.met and name not in self.helped:
                ruled = self.next_stop(life, start, self.budget)
                if ruled != start:
                    raise LockstepError(f"step {step.number} without {name}, budget {self.budget} left", ruled, start)

    def judge_demand(self, op: Op, life: Life, path: Path, hit: int) -> None:
        """What is asked and taken is the demand of the rules, and an allocation fails exactly where that is not free.

        The rules leave two things open, so there may be a least and a most: which of several blocks under one key a failed
        allocation would have hit, a held or a free one; and whether an exported state is kept, which retention decides.
        """
        name, size = life.request.id, len(path)
        keys = [lookup.hit_keys(self.state.keyed.of, path, g, self.unit, hit, size) if hit else [] for g in self.groups]
        least, most = (
            demand.total_demand(self.ask(op, life, group, keys[group.index], size, open_=open_) for group in self.groups)
            for open_ in (False, True)
        )
        ruled = f"{least}" if least == most else f"{least} to {most}"
        claimed = len(op.taken) + sum(1 for block in op.hits if not self.state.holds.at(block))
        free = self.config.geometry.num_blocks - 1 - len(self.state.holds.columns)
        if op.demand is not None and not least <= op.demand <= most:
            what = f"the demand of {name} is {ruled} blocks by the specification, {op.demand} by the engine"
            self.fault("demand-bounds", what, "estimate differs", severity=Severity.WASTE if op.demand > most else None)
        if not op.failed and not least <= claimed <= most:
            self.fault("demand-bounds", f"{name} claimed {claimed} blocks, its demand is {ruled}", "claim is not the demand")
        if (most <= free) if op.failed else (least > free):
            what = f"the allocation for {name} {'failed' if op.failed else 'went on'}, its demand is {ruled}, {free} are free"
            self.fault("demand-bounds", what, "failed without need" if op.failed else "went on beyond what is free")

    def ask(self, op: Op, life: Life, group: Group, keys: list[Key | None], known: int, *, open_: bool) -> demand.Ask:
        """What a group is asked for; `open_`: the costlier answer where the rules leave it open."""
        state, table, geometry = self.state, life.tables[group.index], self.config.geometry
        found = [[block for block in state.keyed.of(key) if op.failed or block in op.hits] for key in keys if key]
        unheld = [(any if open_ else all)(not state.holds.at(block) for block in blocks) for blocks in found if blocks]
        stays = group.kind is Kind.STATE and 0 < group.blocks_for(op.stop) <= len(table)
        block, prompt = chunks.grid(geometry) if geometry.states else 0, len(life.request.prompt)
        unit = geometry.unit if geometry.fine else block
        exports = open_ and group.checkpoint
        return demand.Ask(
            group,
            len(table),
            op.start,
            op.stop,
            hits=len(keys),
            unheld=sum(unheld),
            snapshot=stays and len(state.keyed.at(table[-1])) > 0,
            checkpoint=exports and chunks.checkpoint_position(op.start, op.stop, prompt, known, block=block, unit=unit) > 0,
        )
