"""The runner: right answers, whatever the cache holds, and never a guess."""

from __future__ import annotations

from pathlib import Path

import z3

from kvproof.proofs.obligations import Obligation, induction, theorem, witness
from kvproof.proofs.runner import Cache, prove, solve

X = z3.Int("x")
TRUE = theorem("arithmetic", ("grows",), "A number is less than its successor.", {"any": X == X}, X < X + 1)
FALSE = theorem("arithmetic", ("shrinks",), "A number is less than its predecessor.", {"any": X == X}, X < X - 1)
POSSIBLE = witness("arithmetic", ("big",), "A number can be big.", {"big": X > 1000})
HARD = theorem(
    "arithmetic", ("cubes",), "", {"positive": z3.And(X > 0, z3.Int("y") > 0)}, X**3 + z3.Int("y") ** 3 != z3.Int("z") ** 3
)


def said(obligations: list[Obligation], cache: Cache, seconds: float = 5.0) -> list[tuple[str, bool, bool]]:
    return [(v.answer.said, v.holds, v.cached) for v in prove(obligations, cache=cache, seconds=seconds, jobs=2)]


def test_a_theorem_holds_where_its_denial_cannot() -> None:
    nothing = Cache(None)
    assert said([TRUE, FALSE, POSSIBLE], nothing) == [("unsat", True, False), ("sat", False, False), ("sat", True, False)]


def test_answers_are_remembered_by_text(tmp_path: Path) -> None:
    said([TRUE, POSSIBLE], Cache(tmp_path))
    assert said([TRUE, FALSE], Cache(tmp_path)) == [("unsat", True, True), ("sat", False, False)]
    assert said([FALSE], Cache(tmp_path)) == [("sat", False, True)]


def test_a_witness_and_a_theorem_of_one_text_are_not_mixed_up() -> None:
    assert TRUE.digest != Obligation(TRUE.family, TRUE.name, TRUE.sentence, TRUE.smt, "sat").digest


def test_unknown_is_neither_and_is_not_remembered(tmp_path: Path) -> None:
    assert said([HARD], Cache(tmp_path), 0.05) == [("unknown", False, False)]
    assert said([HARD], Cache(tmp_path), 0.05) == [("unknown", False, False)]


def test_an_answer_that_took_longer_than_is_given_now_does_not_count(tmp_path: Path) -> None:
    (slow,) = [o for o in induction() if o.name[0] == "move" and "keyed block" in o.name[1]]
    said([slow], Cache(tmp_path))
    assert Cache(tmp_path).get(slow, 1e-9) is None
    assert Cache(tmp_path).get(slow, 5.0) is not None


def test_a_damaged_cache_costs_time_only(tmp_path: Path) -> None:
    said([TRUE], Cache(tmp_path))
    for path in tmp_path.iterdir():
        path.write_text(path.read_text()[:-7])
    assert said([TRUE], Cache(tmp_path)) == [("unsat", True, False)]


def test_a_core_names_what_the_proof_uses() -> None:
    premises = {"needed": X > 3, "beside the point": z3.Int("y") > 3}
    text = theorem("arithmetic", (), "", premises, X > 2).smt
    assert solve(text, core=True).core == ("needed", "not so")
    assert solve(text).core == ()


def test_a_core_is_found_when_it_is_asked_for(tmp_path: Path) -> None:
    cores = [v.answer.core for core in (False, True, True) for v in prove([TRUE], cache=Cache(tmp_path), core=core)]
    assert cores == [(), ("not so",), ("not so",)]


def test_every_clause_is_proved_over_every_action() -> None:
    verdicts = list(prove(induction(), cache=Cache(None)))
    assert [v.obligation.sentence for v in verdicts if not v.holds] == []
    assert len(verdicts) == 16 + 26 * 16
