"""CrossHair finds no counterexample to a contract, and does find one where there is one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvproof.proofs.contracts import (
    CONTRACTS,
    NOT_CONFIRMED,
    a_hit_is_served,
    crosshair,
    what_answers_covers,
    what_extends_answers,
    what_is_written_answers,
)
from kvproof.spec import chunks, lineage, lookup


def test_a_short_search_finds_nothing() -> None:
    verdicts = dict(crosshair(1.0))
    assert verdicts.keys() == {contract.__name__ for contract in CONTRACTS}
    assert set(verdicts.values()) <= {"confirmed", NOT_CONFIRMED}


def too_many(start: int, wanted: int) -> bool:
    """A chunk of a long prompt never waits.

    pre: 0 <= start <= 90 and 1 <= wanted <= 10
    post: _
    """
    return chunks.chunk(start, wanted, 100, 100, block=4, unit=1, widest=10) > 0


def test_a_wrong_contract_has_a_counterexample() -> None:
    ((name, verdict),) = crosshair(5.0, (too_many,))
    assert name == "too_many"
    assert "false when calling too_many" in verdict


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "contract"),
    [
        (lineage.Rows, "extends", lambda self, old: True, what_extends_answers),
        (lineage.Key, "covers", lambda self, other: self.lineage.length >= other.lineage.length, what_answers_covers),
        (lineage.StateAt, "answers", lambda self, key: True, what_is_written_answers),
        (lookup, "longest_state", lambda keyed, path, group, grain, limit: limit, a_hit_is_served),
    ],
)
def test_a_wrong_rule_has_a_counterexample(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, wrong: object, contract: Callable[..., bool]
) -> None:
    monkeypatch.setattr(owner, name, wrong)
    ((_, verdict),) = crosshair(20.0, (contract,))
    assert f"false when calling {contract.__name__}" in verdict
