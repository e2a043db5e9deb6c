"""Ratios that the project promises, each measured side by side in one run. Exit 1 when one is worse than its bar.

    python benchmarks/run.py [--rounds 15] [--programs 30]

Times are process CPU time, of each program the fastest of the rounds with checks and the fastest without: on two busy cores 15
rounds repeat within 2 %, 5 within 5 %. Programs come from the default profile by seed: every run measures the same work.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from rich.console import Console
from rich.table import Table

from kvproof.audit.program import Program
from kvproof.audit.session import Session
from kvproof.audit.target import Target
from kvproof.audit.targets.reference import ReferenceTarget
from kvproof.audit.targets.vllm_target import VllmTarget
from kvproof.audit.workload import random_program
from kvproof.spec.geometry import Geometry
from kvproof.spec.records import Config, Request

CHECKS_BAR = 1.0  # checks cost at most so much of the scheduler's own time
POOL_BAR = 1.15  # the checks of a step with 100,000 blocks cost at most so much of those with 1,000

Answers = dict[int, dict[str, int | list[int]]]
Clock = Callable[[], float]
clock: Clock = time.process_time


class Unchecked(Session):
    """A session that only drives the engine: the tokens that steps sample come from a run that was checked."""

    def __init__(self, target: Target, config: Config, answers: Answers) -> None:
        super().__init__(target, config)
        self.monitor = None
        self.device: Any = _Mute(answers)
        self.residency: Any = _Mute(answers)

    def observe(self, *, quiet: bool) -> None:
        pass


def answers_of(session: Session) -> Answers:
    """The tokens that each step of the session samples, by step number, as they come."""
    answers: Answers = {}
    sampled = session.device.sampled

    def remember(step: Any) -> dict[str, int | list[int]]:
        answers[step.number] = sampled(step)
        return answers[step.number]

    session.device.sampled = remember  # type: ignore[method-assign]
    return answers


class _Mute:
    """Stands in for the shadow device and the event replay."""

    requests: tuple[str, ...] = ()

    def __init__(self, answers: Answers) -> None:
        self.answers = answers

    def sampled(self, step: Any) -> dict[str, int | list[int]]:
        return self.answers[step.number]

    def admit(self, request: Request) -> None: ...
    def complete(self, number: int) -> None: ...
    def run(self, step: Any) -> tuple[()]:
        return ()

    def consume(self, events: Any, step: int) -> tuple[()]:
        return ()

    def table(self, request: str) -> tuple[()]:
        return ()


def drive(session: Session, program: Program, *, observe: bool = True) -> float:
    """CPU seconds of a program, without the construction of the engine and without garbage collection, as `fuzz` has it.

    observe: compare the whole pool at the end, as `fuzz` does, which costs what the pool is large.
    """
    gc.collect()
    gc.disable()
    began = clock()
    for operation in program.operations:
        session.do(operation)
    session.drain()
    session.catch_up()
    if observe:
        session.observe(quiet=True)
    spent = clock() - began
    gc.enable()
    return spent


def timed(target: VllmTarget) -> Callable[[], float]:
    """Time spent in vLLM's own schedule and update_from_output from now on."""
    scheduler, spent = target.scheduler, [0.0]

    def wrap(name: str) -> None:
        inner = getattr(scheduler, name)

        def outer(*args: Any, **options: Any) -> Any:
            began = clock()
            try:
                return inner(*args, **options)
            finally:
                spent[0] += clock() - began

        setattr(scheduler, name, outer)

    wrap("schedule")
    wrap("update_from_output")
    return lambda: spent[0]


@dataclass(slots=True)
class Times:
    """Seconds of a program at its fastest: with all checks, without, and of the engine itself where that is told apart."""

    checked: float = inf
    bare: float = inf
    own: float = inf
    steps: int = 0


def times_of(programs: Sequence[Program], rounds: int, checked: Target, bare: Target, *, observe: bool = True) -> list[Times]:
    """The fastest of the rounds counts: a busy machine only adds."""
    times = [Times() for _ in programs]
    for _ in range(rounds):
        for best, program in zip(times, programs, strict=True):
            checked.reset(program.config)
            session = Session(checked, program.config)
            answers = answers_of(session)
            best.checked = min(best.checked, drive(session, program, observe=observe))
            best.steps = session.outcome.steps
            bare.reset(program.config)
            unchecked = Unchecked(bare, program.config, answers)
            spent = timed(bare) if isinstance(bare, VllmTarget) else lambda: inf
            best.bare = min(best.bare, drive(unchecked, program, observe=observe))
            best.own = min(best.own, spent())
    return times


def cost(times: Iterable[Times]) -> float:
    """Seconds that the checks take."""
    return sum(best.checked - best.bare for best in times)


def bare_speed(times: Iterable[Times]) -> float:
    """Steps per second without checks."""
    times = list(times)
    return sum(best.steps for best in times) / sum(best.bare for best in times)


def with_pool(program: Program, blocks: int) -> Program:
    geometry: Geometry = dataclasses.replace(program.config.geometry, num_blocks=blocks)
    config = dataclasses.replace(program.config, geometry=geometry)
    return Program(config, program.operations)


def pool_growth(programs: Sequence[Program], rounds: int, checked: Target, bare: Target) -> tuple[float, float]:
    """Cost of the checks with 100,000 blocks over that with 1,000, the same work otherwise; and so of a bare step."""
    pools = (1_000, 100_000)
    sized = [with_pool(program, blocks) for program in programs for blocks in pools]
    times = times_of(sized, rounds, checked, bare, observe=False)
    small, large = times[::2], times[1::2]
    return cost(large) / cost(small), sum(best.bare for best in large) / sum(best.bare for best in small)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--programs", type=int, default=30)
    options = parser.parse_args()
    programs = [random_program(random.Random(f"bench:{index}")) for index in range(options.programs)]
    checked, bare = VllmTarget(inside=True), VllmTarget(inside=False)
    times_of(programs[:3], 1, checked, bare)
    gc.freeze()  # a collection before each run need not walk all of vLLM
    times = times_of(programs, options.rounds, checked, bare)
    ours, theirs = bare_speed(times_of(programs, options.rounds, ReferenceTarget(), ReferenceTarget())), bare_speed(times)
    ratio = cost(times) / sum(best.own for best in times)
    both = sum(best.steps for best in times) / sum(best.checked for best in times)
    growth, engine = pool_growth(programs[:8], options.rounds, ReferenceTarget(), ReferenceTarget())
    growth_vllm, vllm = pool_growth(programs[:8], options.rounds, checked, bare)
    table = Table("figure", "measured", "bar", title=f"vLLM {checked.release}, {options.programs} programs, default profile")
    table.add_row("all checks / vLLM's schedule + update_from_output", f"{ratio:.2f}", f"<= {CHECKS_BAR}")
    table.add_row("checks of a step, 100,000 / 1,000 blocks, reference", f"{growth:.2f}", f"<= {POOL_BAR}")
    table.add_row("checks of a step, 100,000 / 1,000 blocks, vLLM", f"{growth_vllm:.2f}", f"<= {POOL_BAR}")
    table.add_row("bare step, 100,000 / 1,000 blocks, reference", f"{engine:.2f}", "")
    table.add_row("bare step, 100,000 / 1,000 blocks, vLLM", f"{vllm:.2f}", "")
    table.add_row("reference engine / vLLM, steps per second", f"{ours / theirs:.2f} ({ours:.0f} / {theirs:.0f})", "")
    table.add_row("steps per second with / without checks", f"{both:.0f} / {theirs:.0f}", "")
    Console(width=110).print(table)
    return int(ratio > CHECKS_BAR or growth > POOL_BAR or growth_vllm > POOL_BAR)


if __name__ == "__main__":
    sys.exit(main())
