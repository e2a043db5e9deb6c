"""The integer face says of any run what Python says, and what it assumes of products and quotients is true."""

from __future__ import annotations

import random
from typing import Any

import pytest
import z3

from kvproof.proofs import policies
from kvproof.proofs.paths import Dropped, Sizes
from kvproof.proofs.runner import solve
from kvproof.spec import chunks, lookup
from kvproof.spec.geometry import Group, Kind
from kvproof.spec.lineage import Forest, Path


def possible(sizes: Sizes, given: Any) -> bool:
    """Whether it can be, products and quotients being what they are."""
    _, witness = sizes.obliged("", "", lambda: True, given)
    said = solve(witness.smt).said
    assert said != "unknown"
    return said == "sat"


def test_chunks_on_symbols_are_chunks_on_numbers() -> None:
    rng = random.Random(1)
    s = Sizes()
    names = "start wanted prompt length unit ratio widest junction"
    symbols, flag = s.numbers(names), s.flag("checkpoint")
    unit, ratio, widest, junction = symbols[4:]
    s.assume("sizes", lambda: all(symbol >= 0 for symbol in symbols) and unit >= 1 and ratio >= 1)
    with s.running(chunks):
        got = chunks.chunk(*symbols[:4], block=ratio * unit, unit=unit, widest=widest, junction=junction, checkpoint=flag)
    for _ in range(12):
        most = {"ratio": 4, "unit": 4, "wanted": 30, "widest": 40}
        values = [rng.randint(1, most.get(name, 60)) for name in names.split()]
        values[3] = values[2] + rng.choice([0, 0, 1, 9])
        export = rng.random() < 0.5
        number = chunks.chunk(
            *values[:4], block=values[5] * values[4], unit=values[4], widest=values[6], junction=values[7], checkpoint=export
        )
        pins = [symbol == value for symbol, value in zip(symbols, values, strict=True)]
        pins.append(flag if export else s.symbol(z3.Not(flag.term)))
        assert possible(s, lambda pins=pins, number=number: s.every(*pins, got == number))
        assert not possible(s, lambda pins=pins, number=number: s.every(*pins, got != number))


def test_a_search_may_end_wherever_it_does_in_python() -> None:
    """For a text of 13 tokens, whatever is found and shown: the symbolic result can be what Python finds."""
    rng = random.Random(2)
    group, path = Group(0, Kind.APPEND_ONLY, 6), Path(Forest().root(), range(13))
    for _ in range(8):
        found, shown = {n for n in range(14) if rng.random() < 0.6}, rng.randint(0, 14)
        longest = lookup.longest_append_only(lambda key, found=found: key.lineage.length in found, path, group, 2, 13)
        s = Sizes()
        n, size, unit, limit = s.numbers("n size unit limit")
        s.shown = n
        keyed = policies.findable(s, 1)
        with s.running(lookup):
            result = lookup.longest_append_only(keyed, policies.Text(13), Group(0, Kind.APPEND_ONLY, size), unit, limit)
        keys = [keyed((0, at)) if at in found else s.symbol(z3.Not(keyed((0, at)).term)) for at in range(14)]
        pins = s.every(*keys, size == 6, unit == 2, n == shown, limit == 13)
        assert possible(s, lambda: s.every(pins, result == longest))  # noqa: B023 (asked within its round of the loop)
        if shown == longest + 2:
            assert not possible(s, lambda: s.every(pins, result == shown))  # noqa: B023 (asked within its round of the loop)


def test_a_choice_is_asked_inside_a_run_only() -> None:
    s = Sizes()
    (x,) = s.numbers("x")
    with pytest.raises(TypeError, match="ask inside a run"):
        bool(x > 0)
    assert s.merged(lambda: 1 if x > 0 else 0).term.eq(s.merged(lambda: 1 if x > 0 else 0).term)


def test_a_path_that_is_wrongly_left_out_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Sizes()
    (x,) = s.numbers("x")
    monkeypatch.setattr(s, "possible", lambda truth, answer: answer)
    theorem, _ = s.obliged("", "", lambda: s.merged(lambda: 1 if x > 0 else 0) == 1, lambda: True)
    assert solve(theorem.smt).said == "sat"


def test_a_dropped_path_says_nothing_of_the_others() -> None:
    s = Sizes()
    (x,) = s.numbers("x")

    def run() -> bool:
        if x > 0:
            raise Dropped
        return False

    assert not possible(s, lambda: s.every(s.merged(run), x <= 0))
    assert possible(s, lambda: s.every(s.merged(run), x > 0))
