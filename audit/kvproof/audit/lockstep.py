"""The lockstep of an engine and the specification: what the engine decides must be what the rules decide.

The monitor judges what an engine does to its pool, whatever made it do so. A lockstep also judges the choices behind it:
how long a hit is, where a chunk ends, how many blocks an allocation asks for. It asks `lookup`, `chunks` and `demand` of
the specification on the kernel's state just before each allocation. It is for engines that follow these policies to the
letter, above all the reference engine, whose own lookup, chunking and allocation share no line with them. Safety needs
none of this: an engine with other policies is no worse for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvproof.audit.monitor import Hashes, Life, Monitor
from kvproof.audit.target import Op, OpKind, Result
from kvproof.spec import chunks, demand, lookup
from kvproof.spec.checks import Fault, Severity
from kvproof.spec.geometry import Group, Kind
from kvproof.spec.lineage import Forest, Key, Path
from kvproof.spec.records import Config, Request, Step


class LockstepError(AssertionError):
    """Engine and specification decide differently."""

    def __init__(self, op: str, what: str, ruled: object, engine: object) -> None:
        super().__init__(f"{op}: {what} is {ruled} by the specification, {engine} by the engine")


class Lockstep(Monitor):
    """A monitor that also compares decisions. A hit or a demand that differs is a fault, a chunk raises `LockstepError`.

    known: tokens of each request's text, prompt and accepted samples. sampling: steps in flight that will sample for its
    present life. computed, junctions: where its last chunk ended, and what the lookup saw when this life began; both are
    there while it runs. Of the step that is being staged: the budget left, the tokens given to each request, and the
    budget that each met when it was first tried (it keeps its chunk when others are preempted for it).
    """

    def __init__(self, config: Config, forest: Forest) -> None:
        super().__init__(config, forest)
        self.known: dict[str, int] = {}
        self.sampling: dict[str, set[int]] = {}
        self.computed: dict[str, int] = {}
        self.junctions: dict[str, int] = {}
        self.budget = 0
        self.given: dict[str, int] = {}
        self.met: dict[str, int] = {}
        self.short = False  # an allocation of this step failed

    # ------------------------------------------------------------------------------------------------------ what happens

    def admit(self, request: Request) -> list[Fault]:
        self.known[request.id] = len(request.prompt)
        self.sampling[request.id] = set()
        return super().admit(request)

    def scheduled(self, ops: Iterable[Op], step: Step, hashes: Hashes) -> list[Fault]:
        self.budget, self.short = self.config.max_batched_tokens, False
        self.given.clear()
        self.met.clear()
        faults = super().scheduled(ops, step, hashes)
        if not self.short:
            self.judge_idle(step)
        for row in step.rows:
            if row.samples and row.request in self.sampling:
                self.sampling[row.request].add(step.number)
        return faults

    def completed(self, ops: Iterable[Op], step: Step, result: Result, hashes: Hashes) -> list[Fault]:
        for row in step.rows:
            self.sampling[row.request].discard(step.number)
        for request, tokens in result.accepted.items():
            self.known[request] += len(tokens)
        return super().completed(ops, step, result, hashes)

    def operate(self, op: Op, step: Step | None, hashes: Hashes) -> None:
        """Judges an allocation before the kernel takes it. Whoever leaves its table begins anew, and what it had of the step
        that is being staged goes back to the budget."""
        life = self.lives.get(op.request or "")
        if life is not None and op.kind is OpKind.ALLOCATE and op.stop > op.start:
            self.judge(op, life)
        elif life is not None and op.kind is OpKind.FREE:
            self.budget += self.given.pop(life.request.id, 0)
            self.computed.pop(life.request.id, None)
            self.sampling[life.request.id].clear()
        super().operate(op, step, hashes)

    # ------------------------------------------------------------------------------------------------------- the decisions

    def judge(self, op: Op, life: Life) -> None:
        """An allocation for tokens, as the kernel stands before it."""
        path, name = self.text_of(life), life.request.id
        new = not any(life.tables)
        if new:
            self.judge_hit(op, name, path)
        if not new or op.hit == op.start:  # else an outside load comes between the hit and the chunk
            self.judge_chunk(op, life)
            self.judge_demand(op, life, path, new)
        self.short = self.short or op.failed
        if not op.failed:
            self.given[name] = op.stop - op.start
            self.budget -= op.stop - op.start
            self.computed[name] = op.stop

    def text_of(self, life: Life) -> Path:
        """The known text. The path of a life may run ahead of it."""
        life.text(self.known[life.request.id])
        path = Path(life.path[0])
        path.nodes = life.path.nodes[: self.known[life.request.id] + 1]
        return path

    def judge_hit(self, op: Op, name: str, path: Path) -> None:
        """Keys up to the end of the text are probed: a longer block answers a shorter hit."""
        found = lookup.common_hit(self.state.keyed.of, path, self.config.geometry, len(path))
        self.junctions[name] = found.junction
        if op.hit != found.length:
            what = f"the common hit of {name} is {found.length} tokens by the specification, {op.hit} by the engine"
            self.fault("hit-answers", what, "lookup differs", severity=Severity.WASTE if op.hit < found.length else None)

    def next_chunk(self, life: Life, start: int, budget: int) -> int:
        """Where the specification ends a chunk; `start` where there is nothing to compute now."""
        request = life.request
        known, prompt = self.known[request.id], len(request.prompt)
        limit = min(prompt + request.max_tokens, self.config.max_model_len)
        wanted = min(known + len(self.sampling[request.id]), limit - 1) - start
        wanted = min(wanted, budget)
        if wanted <= 0:
            return start
        return start + chunks.next_chunk(self.config, start, wanted, prompt, known, self.junctions.get(request.id, 0))

    def judge_chunk(self, op: Op, life: Life) -> None:
        budget = self.met.setdefault(life.request.id, self.budget)
        ruled = self.next_chunk(life, op.start, budget)
        if op.stop != ruled:
            where = f"allocate {life.request.id} from {op.start}, {budget} tokens of budget"
            raise LockstepError(where, "the end of the chunk", ruled, op.stop)

    def judge_idle(self, step: Step) -> None:
        """Whoever runs and got no chunk could get none: what the end of the step left of the budget is too little, too."""
        for name, start in self.computed.items():
            life = self.lives.get(name)
            if life is None or name in self.given:
                continue
            ruled = self.next_chunk(life, start, self.budget)
            if ruled > start:
                where = f"step {step.number}, {name} at {start}, {self.budget} tokens of budget left"
                raise LockstepError(where, "the end of the chunk", ruled, "none")

    def judge_demand(self, op: Op, life: Life, path: Path, new: bool) -> None:
        """What is asked and taken is the demand of the rules, and an allocation fails exactly where that is not free.

        The rules leave two things open, so there may be a least and a most: which of several blocks under one key a failed
        allocation would have hit, a held or a free one; and whether an exported state is kept, which retention decides.
        """
        name, hit = life.request.id, op.hit if new else 0
        asks: tuple[list[demand.Ask], list[demand.Ask]] = ([], [])
        for group in self.groups:
            keys = lookup.hit_keys(self.state.keyed.of, path, group, self.unit, hit, len(path)) if hit else []
            for most in (False, True):
                asks[most].append(self.ask(op, life, group, keys, len(path), most=most))
        least, most = map(demand.total_demand, asks)
        ruled = f"{least}" if least == most else f"{least} to {most}"
        claimed = len(op.taken) + sum(1 for block in op.hits if not self.state.holds.at(block))
        free = self.config.geometry.num_blocks - 1 - self.state.holds.width
        if op.demand is not None and not least <= op.demand <= most:
            what = f"the demand of {name} is {ruled} blocks by the specification, {op.demand} by the engine"
            self.fault("demand-bounds", what, "estimate differs", severity=Severity.WASTE if op.demand > most else None)
        if not op.failed and not least <= claimed <= most:
            self.fault("demand-bounds", f"{name} claimed {claimed} blocks, its demand is {ruled}", "claim is not the demand")
        if not (most > free if op.failed else least <= free):
            what = f"the allocation for {name} {'failed' if op.failed else 'went on'}, its demand is {ruled}, {free} are free"
            self.fault("demand-bounds", what, "failed without need" if op.failed else "went on beyond what is free")

    def ask(self, op: Op, life: Life, group: Group, keys: list[Key | None], known: int, *, most: bool) -> demand.Ask:
        """What the rules let a group be asked for; with `most` where they leave it open, the more costly answer."""
        state, table, start, stop = self.state, life.tables[group.index], op.start, op.stop
        hit = [[b for b in state.keyed.of(key) if op.failed or b in op.hits] for key in keys if key]
        free = [[not state.holds.at(block) for block in blocks] for blocks in hit]
        running = group.kind is Kind.STATE and table and group.blocks_for(stop) <= len(table)
        return demand.Ask(
            group,
            len(table),
            start,
            stop,
            hits=len(keys),
            unheld=sum((any if most else all)(blocks) for blocks in free if blocks),
            snapshot=bool(running and state.keyed.at(table[-1])),
            checkpoint=most and group.checkpoint and self.exports(life, start, stop, known),
        )

    def exports(self, life: Life, start: int, stop: int, known: int) -> bool:
        geometry, prompt = self.config.geometry, len(life.request.prompt)
        block = chunks.grid(geometry)
        unit = geometry.unit if geometry.fine else block
        return chunks.checkpoint_position(start, stop, prompt, known, block=block, unit=unit) > 0
