"""Layers: what is set shows through from above, and sinks to the bottom with what lies between."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.spec.logic import Function, Layer

entries = st.dictionaries(st.integers(0, 4), st.integers(0, 9))


@settings(derandomize=True, deadline=None)
@given(bottom=entries, middle=entries, top=entries)
def test_a_layer_shows_the_same_after_it_sank(bottom: dict[int, int], middle: dict[int, int], top: dict[int, int]) -> None:
    base: Function[int, int] = Function(-1)
    base.update(bottom)
    between: Layer[int, int] = Layer(base)
    between.update(middle)
    above: Layer[int, int] = Layer(between)
    above.update(top)
    seen = [above[key] for key in range(5)]
    assert seen == [{**bottom, **middle, **top}.get(key, -1) for key in range(5)]
    above.sink()
    assert [above[key] for key in range(5)] == [between[key] for key in range(5)] == [base[key] for key in range(5)] == seen
    assert not dict.keys(above)
    assert not dict.keys(between)
