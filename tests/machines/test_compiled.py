"""The compiled actions do what the actions do: same refusals, same state, whatever is asked of them."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from kvproof.audit.compiled import PARTS, compiled, source
from kvproof.audit.probe import ProbeResult, Universe
from kvproof.spec import logic
from kvproof.spec.actions import ACTIONS
from kvproof.spec.logic import Function
from kvproof.spec.state import State

Told = tuple[str, str, tuple[Any, ...]]


class Twins(Universe):
    """A universe where every action is taken twice, whatever its guards say: as written, and compiled on a state of its own."""

    def __init__(self, rng: random.Random, *, unordered: bool) -> None:
        super().__init__(rng, unordered=unordered, strict=False)
        self.state.refusals = []
        self.other = State(unordered=unordered)
        self.told: list[Told] = []
        self.refused: set[tuple[str, str]] = set()
        self.actions = compiled(self.other, lambda *refusal: self.told.append(refusal))

    def take(self, name: str, arguments: Any) -> str | None:
        ACTIONS[name].apply(self.state, *arguments)
        expected = [(guard, name, tuple(arguments)) for guard in self.state.refusals or ()]
        assert getattr(self.actions, name)(*arguments) is bool(expected)
        assert self.told == expected
        assert shown(self.other) == shown(self.state)
        self.refused |= {(name, guard) for guard, *_ in expected}
        self.state.refusals = []
        self.told.clear()
        return None


def shown(state: State) -> dict[str, Any]:
    """Everything that a state holds."""
    parts = {name: getattr(state, name) for name in PARTS}
    held = {name: dict(part) if isinstance(part, Function) else vars(part) for name, part in parts.items()}
    return held | {"issued": state.issued, "completed": state.completed}


@pytest.mark.parametrize("unordered", [False, True])
def test_compiled_actions_are_the_actions(unordered: bool) -> None:
    """Random actions, fitting or not, until each has happened and each guard has refused."""
    counts: Counter[str] = Counter()
    refused: set[tuple[str, str]] = set()
    for seed in range(300):
        twins = Twins(random.Random(seed), unordered=unordered)
        twins.scene(ProbeResult())
        for _ in range(30):
            twins.offer(ProbeResult())
        counts += twins.actions.counts()
        refused |= twins.refused
    assert counts.keys() == ACTIONS.keys()
    assert {guard for _, guard in refused} == {guard for action in ACTIONS.values() for guard in action.guards}


def test_the_compiler_leaves_no_face_behind() -> None:
    assert "def stage_write(holder, block, content, need" in source(unordered=False)
    assert logic.symbolic is None


def test_an_unknown_action_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no action is named 'evict'"):
        compiled(State(), print).evict(1)
