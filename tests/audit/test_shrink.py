"""Shrinking keeps the finding, ends, is deterministic, and gets small programs."""

import random
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as altered
from tests.audit.toy import BUGS, FLAT, Toy

from kvproof.audit.engines import Harness
from kvproof.audit.fuzz import Plan, fuzz
from kvproof.audit.program import Abort, Add, Program, Schedule
from kvproof.audit.session import run_program
from kvproof.audit.shrink import PLAIN, measure, shrink
from kvproof.audit.workload import random_program


def some_program(seed: int = 1) -> Program:
    return random_program(random.Random(seed), "churn", [FLAT])


def aborts_after_two_long_prompts(program: Program) -> bool:
    long = 0
    for operation in program.operations:
        long += isinstance(operation, Add) and len(operation.tokens) >= 5
        if isinstance(operation, Abort) and long >= 2:
            return True
    return False


def test_a_predicate_is_shrunk_to_its_core() -> None:
    start = next(p for p in map(some_program, range(99)) if aborts_after_two_long_prompts(p))
    small = shrink(start, aborts_after_two_long_prompts)
    assert aborts_after_two_long_prompts(small)
    assert [type(operation) for operation in small.operations] == [Add, Add, Abort]
    assert [add.tokens for add in small.adds] == [tuple(range(5))] * 2
    assert all(add.max_tokens == 1 and not add.priority and add.salt is None and add.after is None for add in small.adds)
    assert small.config.depth == 1
    assert not small.config.fences
    assert shrink(start, aborts_after_two_long_prompts) == small


def test_operations_that_only_go_together_go_together() -> None:
    def steps_once_per_request(candidate: Program) -> bool:
        return len(candidate.adds) == sum(isinstance(operation, Schedule) for operation in candidate.operations) > 0

    program = Program(some_program().config, tuple(Add(name, ((0, 1),), 1) for name in "abcd") + (Schedule(),) * 4)
    assert [type(operation) for operation in shrink(program, steps_once_per_request).operations] == [Add, Schedule]


def test_what_several_prompts_share_is_shortened_together() -> None:
    config = some_program().config
    program = Program(config, (Add("a", ((0, 9), (90, 93)), 1), Add("b", ((0, 9), (70, 71)), 1)))

    def share(candidate: Program) -> bool:
        starts = [add.prompt[0] for add in candidate.adds if add.prompt]
        return len(starts) == 2 and starts[0] == starts[1] and starts[0][1] - starts[0][0] >= 3

    assert [add.prompt for add in shrink(program, share).adds] == [((0, 3),)] * 2


def test_a_follow_up_is_written_out_where_that_is_enough() -> None:
    program = Program(some_program().config, (Add("a", ((0, 3),), 1), Add("b", ((3, 5),), 1, after="a")))

    def five_tokens(candidate: Program) -> bool:
        tokens = {None: ()} | {add.id: add.tokens for add in candidate.adds}
        return len(candidate.adds) == 2 and len(tokens.get(candidate.adds[1].after, ()) + candidate.adds[1].tokens) == 5

    assert shrink(program, five_tokens).adds[1] == Add("b", ((0, 5),), 1)


@pytest.mark.parametrize("runs", [0, 1, 7])
def test_no_more_runs_than_allowed(runs: int) -> None:
    asked: list[Program] = []

    def fails(program: Program) -> bool:
        asked.append(program)
        return True

    shrink(some_program(), fails, runs)
    assert len(asked) <= runs


def test_only_possible_configurations_are_tried() -> None:
    tried: list[Program] = []

    def fails(program: Program) -> bool:
        tried.append(program)
        return len(tried) % 3 == 0

    shrink(some_program(), fails)
    assert all(program.config.max_batched_tokens >= 4 for program in tried)


def test_every_plainer_part_counts_in_the_measure() -> None:
    add = Add("a", ((5, 9),), 2, 1, "red", "z", outside=3, ordered=True, save=True, drafts=2, fails=True)
    program = Program(replace(some_program().config, depth=2), (add, Schedule()))
    changes: list[dict[str, Any]] = [{name: plain} for name, plain in PLAIN.items()]
    changes += [{"prompt": ((5, 8),)}, {"prompt": ((0, 4),)}, {"max_tokens": 1}, {"after": None}, {"outside": 2}, {"drafts": 1}]
    for change in changes:
        assert measure(program.with_operations([altered(add, **change), Schedule()])) < measure(program), change
    assert measure(program.with_operations([add])) < measure(program)
    assert measure(Program(replace(program.config, depth=1), program.operations)) < measure(program)
    assert measure(Program(replace(program.config, max_model_len=8), program.operations)) < measure(program)


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_found_and_shrunk(bug: str) -> None:
    summary = fuzz(Harness.of("toy", Toy(bug)), Plan("toy", shapes=(FLAT,), seconds=1.0))
    assert summary.violations
    for violation in summary.violations:
        assert violation.again
        assert len(violation.case.operations) <= 4
        assert violation.identity in run_program(Toy(bug), violation.case.program).findings


def test_a_sound_engine_shows_nothing() -> None:
    summary = fuzz(Harness.of("toy", Toy()), Plan("toy", shapes=(FLAT,), seconds=0.5))
    assert (summary.violations, summary.refused) == ([], 0)
    assert summary.steps > 0
