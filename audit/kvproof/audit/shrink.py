"""Making a failing program small, by running smaller ones: the same check with the same signature has to fire.

Deterministic. First operations go, in halves, quarters and one by one; then prompts, answers and options get plainer; then
the configuration; again until nothing helps or the budget of runs is spent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from msgspec.structs import replace as altered

from kvproof.audit.program import Add, Program, Run, impossible
from kvproof.spec.records import Config, Policy

PLAIN = {"salt": None, "priority": 0, "outside": 0, "ordered": False, "save": False, "drafts": 0, "fails": False}

Fails = Callable[[Program], bool]


class Budget:
    """Counts questions; an exhausted budget answers no."""

    def __init__(self, fails: Fails, runs: int) -> None:
        self.fails = fails
        self.left = runs
        self.known: dict[Program, bool] = {}

    def __call__(self, program: Program) -> bool:
        if program not in self.known:
            if self.left <= 0 or impossible(program.config):
                return False
            self.left -= 1
            self.known[program] = self.fails(program)
        return self.known[program]


def shrink(program: Program, fails: Fails, runs: int = 400) -> Program:
    """A program no larger for which `fails` holds as it does for the given one. `fails` is called at most `runs` times."""
    budget = Budget(fails, runs)
    while True:
        smaller = fewer_operations(program, budget)
        smaller = first_that_fails(smaller, budget, plainer_adds)
        smaller = first_that_fails(smaller, budget, plainer_configs)
        if smaller == program:
            smaller = first_that_fails(program, budget, without_two)
        if smaller == program or budget.left <= 0:
            return smaller
        program = smaller


def fewer_operations(program: Program, fails: Fails) -> Program:
    """Delta debugging: leaves out stretches of operations, long ones first, from the end."""
    size = len(program.operations)
    while size >= 1:
        stop = len(program.operations)
        while stop > 0:
            start = max(0, stop - size)
            rest = program.operations[:start] + program.operations[stop:]
            if fails(program.with_operations(rest)):
                program = program.with_operations(rest)
            stop = start
        size //= 2
    return program


def without_two(program: Program) -> Iterator[Program]:
    """Leaves out two operations that only go together, as a request and the step that it takes."""
    operations = program.operations
    for second in reversed(range(len(operations))):
        for first in range(second):
            yield program.with_operations((*operations[:first], *operations[first + 1 : second], *operations[second + 1 :]))


def first_that_fails(program: Program, fails: Fails, plainer: Callable[[Program], Iterator[Program]]) -> Program:
    """Takes the first plainer program that still fails, and again from there, until none does."""
    while True:
        size = measure(program)
        found = next((other for other in plainer(program) if measure(other) < size and fails(other)), None)
        if found is None:
            return program
        program = found


def measure(program: Program) -> tuple[int, ...]:
    """What a reader has to take in, most costly first. Every accepted program has less of it, so shrinking ends."""
    config, adds = program.config, program.adds
    return (
        len(program.operations),
        sum(lengths(adds)) + sum(add.max_tokens + add.outside + add.drafts for add in adds),
        sum(len(add.prompt) + 9 * (add.after is not None) + len(options(add)) for add in adds),
        config.depth + config.fences + config.junctions + (config.policy is not Policy.FCFS),
        config.max_batched_tokens + config.max_model_len + config.geometry.num_blocks,
        sum(start for add in adds for start, _ in add.prompt),
    )


def options(add: Add) -> list[str]:
    """Names of the optional fields that a request makes use of, `after` left out."""
    return [name for name, plain in PLAIN.items() if getattr(add, name) != plain]


def lengths(adds: list[Add]) -> Iterator[int]:
    """Of each prompt, with the prompt that it follows."""
    known: dict[str | None, int] = {}
    for add in adds:
        known[add.id] = len(add.tokens) + known.get(add.after, 0)
        yield known[add.id]


def plainer_adds(program: Program) -> Iterator[Program]:
    """Each request with fewer options, a shorter answer and prompt; a common part shorter in all; plainer token ids."""
    prompts_of: dict[str | None, tuple[Run, ...]] = {}
    for index, operation in enumerate(program.operations):
        if isinstance(operation, Add):
            for add in plainer_requests(operation, prompts_of.get(operation.after, ())):
                yield program.with_operations((*program.operations[:index], add, *program.operations[index + 1 :]))
            prompts_of[operation.id] = operation.prompt
    prompts = [run for add in program.adds for run in add.prompt]
    for start, stop in sorted(set(prompts)):
        if prompts.count((start, stop)) > 1:
            for length in smaller_numbers(stop - start, 1):
                yield with_runs(program, {(start, stop): (start, start + length)})
    yield from renumberings(program)


def plainer_requests(add: Add, before: tuple[Run, ...]) -> Iterator[Add]:
    """before: the prompt of the request that it follows."""
    if add.after is not None:
        yield altered(add, after=None)
        yield altered(add, after=None, prompt=before + add.prompt)
    for name in options(add):
        yield altered(add, **{name: PLAIN[name]})
    for name, least in (("max_tokens", 1), ("outside", 1), ("drafts", 1)):
        for number in smaller_numbers(getattr(add, name), least):
            yield altered(add, **{name: number})
    for prompt in shorter_prompts(add.prompt):
        if prompt or add.after:
            yield altered(add, prompt=prompt)


def shorter_prompts(prompt: tuple[Run, ...]) -> Iterator[tuple[Run, ...]]:
    """As one run; without a run; with a run cut short."""
    if len(prompt) > 1:
        yield ((prompt[0][0], prompt[0][0] + sum(stop - start for start, stop in prompt)),)
    for index, (start, stop) in enumerate(prompt):
        before, after = prompt[:index], prompt[index + 1 :]
        yield before + after
        for length in smaller_numbers(stop - start, 1):
            yield (*before, (start, start + length), *after)


def smaller_numbers(number: int, least: int) -> Iterator[int]:
    """Candidates below a number: the least, then halfway, three quarters, .., one less."""
    gap = number - least
    while gap > 0:
        yield number - gap
        gap //= 2


def renumberings(program: Program) -> Iterator[Program]:
    """Prompts that start with small token ids: all at 0, or each where another one ends."""
    found = sorted({run for add in program.adds for run in add.prompt})
    yield with_runs(program, {run: (0, run[1] - run[0]) for run in found})
    fresh: dict[int, int] = {}
    free = 0
    for start, stop in found:
        fresh.setdefault(start, free)
        free = max(free, fresh[start] + stop - start)
    yield with_runs(program, {(a, b): (fresh[a], fresh[a] + b - a) for a, b in found})


def with_runs(program: Program, fresh: dict[Run, Run]) -> Program:
    """Each run of token ids replaced where `fresh` names another one."""
    return program.with_operations(
        [
            altered(op, prompt=tuple(fresh.get(run, run) for run in op.prompt)) if isinstance(op, Add) else op
            for op in program.operations
        ]
    )


def plainer_configs(program: Program) -> Iterator[Program]:
    for config in config_candidates(program.config):
        yield Program(config, program.operations)


def config_candidates(config: Config) -> Iterator[Config]:
    """Fewer options first, then fewer state groups, a shorter model, a smaller budget and pool."""
    geometry = config.geometry
    if config.depth > 1:
        yield replace(config, depth=1, fences=False)
        yield replace(config, depth=config.depth - 1)
    if config.fences:
        yield replace(config, fences=False)
    if config.junctions:
        yield replace(config, junctions=False)
    if config.policy is not Policy.FCFS:
        yield replace(config, policy=Policy.FCFS)
    for budget in smaller_numbers(config.max_batched_tokens, geometry.scheduler_block):
        yield replace(config, max_batched_tokens=budget)
    for length in smaller_numbers(config.max_model_len, geometry.scheduler_block):
        yield replace(config, max_model_len=length)
    for blocks in smaller_numbers(geometry.num_blocks, 2):
        yield replace(config, geometry=replace(geometry, num_blocks=blocks))
