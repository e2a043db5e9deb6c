"""The three axioms of `face.World` hold for the contents and keys of `spec.lineage`.

Exhaustive: over two tokens and texts of up to four there are finitely many contents, whatever is written in whatever order.
Here are all of them, for both kinds and blocks of one to three tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import pytest

from kvproof.spec.geometry import Geometry, Group
from kvproof.spec.lineage import UNKNOWN, ZERO, Content, Forest, Key, Lineage, Rows, StateAt, written

LENGTH = 4


def lineages() -> list[Lineage]:
    root = Forest().root()
    return [root.extended(text) for size in range(1, LENGTH + 1) for text in product((0, 1), repeat=size)]


def identity(content: Content) -> object:
    if isinstance(content, Rows):
        return content.group, content.runs
    return (content.group, content.lineage) if isinstance(content, StateAt) else content


def contents(groups: Iterable[Group], names: list[Lineage]) -> list[Content]:
    """All that blocks of the groups can hold, after any number of writes."""
    found: dict[object, Content] = {content: content for content in (UNKNOWN, ZERO)}
    new = list(found.values())
    while new:
        old = new.pop()
        for group, name in product(groups, names):
            base = (name.length - 1) // group.block_size * group.block_size
            for start in range(base, name.length):
                content = written(old, group, start, name.length, name)
                if identity(content) not in found:
                    found[identity(content)] = content
                    new.append(content)
    return list(found.values())


def broken(held: list[Content], keys: list[Key]) -> set[str]:
    """The axioms that do not hold, and "idle" for one that nothing puts to the test."""
    answers = {id(content): sum(content.answers(key) << bit for bit, key in enumerate(keys)) for content in held}
    covered = [sum(key.covers(need) << bit for bit, need in enumerate(keys)) for key in keys]
    extends = [(new, old) for new, old in product(held, held) if new is not old and new.extends(old)]
    faults = {"unknown"} if answers[id(UNKNOWN)] or answers[id(ZERO)] else set()
    if any(answers[id(old)] & ~answers[id(new)] for new, old in extends):
        faults.add("extends")
    for content, (bit, needs) in product(held, enumerate(covered)):
        if answers[id(content)] >> bit & 1 and needs & ~answers[id(content)]:
            faults.add("covers")
    if not any(answers[id(old)] for _, old in extends):
        faults.add("idle")
    return faults


# Block size, and how many contents there are: two unknown ones, 30 states, and the rows.
SCOPES = [(1, 62), (2, 218), (3, 250)]


@pytest.mark.parametrize(("size", "count"), SCOPES)
def test_the_axioms_hold(size: int, count: int) -> None:
    groups, names = Geometry.of(size, (size,), unit=1).groups, lineages()
    held = contents(groups, names)
    assert len(held) == count
    assert broken(held, [name.key(group) for group in groups for name in names]) == ({"idle"} if size == 1 else set())


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "fault"),
    [
        (Content, "answers", lambda self, key: key.lineage.length == 1, "unknown"),
        (StateAt, "extends", lambda self, old: True, "extends"),
        (Rows, "extends", lambda self, old: isinstance(old, Rows) and len(self.runs) == len(old.runs) == 1, "extends"),
        (Key, "covers", lambda self, other: self.lineage.starts_with(other.lineage), "covers"),
        (Rows, "answers", lambda self, key: self.runs[-1][1].length == key.lineage.length, "covers"),
    ],
)
def test_a_wrong_model_breaks_them(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, wrong: object, fault: str) -> None:
    groups, names = Geometry.of(2, (2,), unit=1).groups, lineages()
    held = contents(groups, names)
    monkeypatch.setattr(owner, name, wrong)
    assert fault in broken(held, [key.key(group) for group in groups for key in names])
