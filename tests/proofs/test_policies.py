"""What is promised of the policies is proved, and each promise is broken by some policy that is wrong."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import pytest

from kvproof.proofs import policies
from kvproof.proofs.obligations import Obligation
from kvproof.proofs.runner import solve
from kvproof.spec import chunks, demand, lookup


def verdict(obligation: Obligation) -> str:
    return solve(obligation.smt).said


def test_every_policy_obligation_is_decided_as_expected() -> None:
    obligations = list(policies.policies())
    said = [verdict(o) for o in obligations]
    assert [o.name for o, verdict in zip(obligations, said, strict=True) if verdict != o.expect] == []
    names = {expect: [o.name[-1] for o in obligations if o.expect == expect] for expect in ("unsat", "sat")}
    assert names["unsat"] == ["arithmetic", *names["sat"]], "each with a witness"
    assert len(set(names["unsat"])) == len(names["unsat"])


@pytest.mark.parametrize("part", [policies.configured_chunks, policies.common_hits])
@pytest.mark.parametrize("states", [1, 3])
def test_the_number_of_state_groups_does_not_matter(part: Callable[[int], Iterable[Obligation]], states: int) -> None:
    assert [o.name for o in part(states) if verdict(o) != o.expect] == []


def mutate(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, old: str, new: str) -> None:
    """The function as its module has it, with one change of its text."""
    function: Any = module
    for part in name.split("."):
        owner, function = function, getattr(function, part)
    source = inspect.cleandoc("\n" + inspect.getsource(function))
    assert source.count(old) == 1
    code = compile(source.replace(old, new), module.__name__, "exec", flags=annotations.compiler_flag)
    made: dict[str, Any] = {}
    exec(code, vars(module), made)
    monkeypatch.setattr(owner, function.__name__, made[function.__name__])


PARTS: dict[ModuleType, tuple[Callable[[], Iterable[Obligation]], ...]] = {
    chunks: (policies.chunk_stops, policies.configured_chunks),
    demand: (policies.demands,),
    lookup: (policies.longest_hits, policies.common_hits),
}

MUTANTS = [
    (chunks, "chunk", "realign, last", "last", "chunk realign"),
    (chunks, "chunk", "last, tail_stop, junction", "tail_stop, junction", "chunk stops"),
    (chunks, "chunk", "tail_stop, junction):", "junction):", "chunk stops"),
    (chunks, "chunk", "tail_stop, junction):", "tail_stop):", "chunk junction"),
    (chunks, "chunk", "max(floor, start)", "floor", "chunk budget"),
    (chunks, "chunk", "block <= widest", "block < widest", "chunk end"),
    (chunks, "chunk", "floor > start or block <= widest", "floor > start", "chunk waits"),
    (chunks, "chunk", "exports and not start < junction < end", "exports", "chunk junction"),
    (chunks, "chunk", "return wanted", "return wanted + 1", "chunk budget"),
    (chunks, "chunk", "max(tail(prompt, unit), last)", "tail(prompt, unit)", "chunk end"),
    (
        chunks,
        "chunk",
        "end < prefill_end(prompt, length):\n        floor",
        "end <= prefill_end(prompt, length):\n        floor",
        "chunk progress",
    ),
    (chunks, "cut", "start < stop < end", "start <= stop < end", "chunk cover"),
    (chunks, "tail", "(prompt - 1)", "prompt", "tail"),
    (chunks, "junction_stop", "exact and junction <= prompt", "exact", "junction stop"),
    (chunks, "junction_stop", "junction // block * block", "junction", "junction stop"),
    (chunks, "checkpoint_position", "slots >= 2", "slots >= 1", "checkpoint position"),
    (chunks, "checkpoint_position", "(end - 1) // unit", "end // unit", "checkpoint position"),
    (chunks, "checkpoint_position", "stop >= end and ", "", "checkpoint position"),
    (
        chunks,
        "grid",
        "lcm(*(group.block_size for group in geometry.states))",
        "geometry.states[0].block_size",
        "next chunk, fine",
    ),
    (chunks, "next_chunk", "geometry.unit if geometry.fine else block", "geometry.unit", "next chunk, coarse"),
    (demand, "demand", " + ask.partial", "", "demand, append_only"),
    (demand, "demand", " + ask.snapshot", "", "demand, state"),
    (demand, "demand", " + ask.unheld", "", "total demand"),
    (demand, "demand", "1 + ask.checkpoint", "1", "demand, state"),
    (demand, "demand", "min(missing", "max(missing", "demand, state"),
    (demand, "demand", " - ask.hits", "", "demand, append_only"),
    (demand, "total_demand", "sum(demand(ask) for ask in asks)", "max(demand(ask) for ask in asks)", "total demand"),
    (lookup, "full_run", "limit + 1", "limit", "attention hit"),
    (lookup, "full_run", "limit // group.block_size + 1", "limit // group.block_size", "attention hit"),
    (lookup, "longest_append_only", "group.block_size - unit", "group.block_size - unit - unit", "attention hit"),
    (lookup, "longest_append_only", "inside, run, -unit", "inside, run + unit, -unit", "attention hit is greatest"),
    (lookup, "longest_append_only", "group))), run)", "group))), run + unit)", "attention hit"),
    (lookup, "longest_state", "limit // grain * grain, 0", "limit // grain * grain - grain, 0", "state hit"),
    (lookup, "longest_state", "limit // grain * grain, 0", "limit // grain * grain, grain", "state hit"),
    (lookup, "common_hit", "path, group, grain, candidate)", "path, group, grain, longest)", "common hit, fine"),
    (lookup, "common_hit", "max(len(path) - 1, 0)", "len(path)", "common hit bounds, fine"),
    (lookup, "common_hit", "while length != candidate:", "while length < 0:", "common hit, fine"),
    (lookup, "common_hit", "longest > length else", "longest >= length else", "common hit bounds, coarse"),
    (lookup, "common_hit", "min([most, *ends]) // grain * grain", "min([most, *ends])", "common hit bounds, fine"),
    (lookup, "common_hit", "min([most, *ends])", "max([most, *ends])", "common hit bounds, fine"),
]


@pytest.mark.parametrize(("module", "name", "old", "new", "promise"), MUTANTS)
def test_a_wrong_policy_breaks_a_promise(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, old: str, new: str, promise: str
) -> None:
    mutate(monkeypatch, module, name, old, new)
    assert [verdict(o) for part in PARTS[module] for o in part() if (o.family, o.name) == ("policy", (promise,))] == ["sat"]
