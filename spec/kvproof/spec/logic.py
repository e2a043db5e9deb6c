"""A small logic with two faces: on values it computes, on symbols it builds terms.

The actions and clauses are written with these words only, so that the very same functions run beside an engine and are
proved. Here is the concrete face. A symbolic face installs itself as `symbolic`; this module knows nothing of it.

House rules, which `Relation` and `Function` enforce when they are made `strict`: within one action guards come first, then
snapshots, then writes, and nothing is read once it was written. Truth values are `True` and `False`: anything else (a
symbol, a number) goes to the symbolic face, or is an error where there is none.

    every(state.keyed.at(block), lambda key: answers(content, key))     each key of the block is answered
    both(a, lambda: b)     b is looked at only where a holds; a term may be given as a function of nothing
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

A = TypeVar("A", bound=Hashable)
B = TypeVar("B", bound=Hashable)
V = TypeVar("V")

Term = Any  # a bool, a symbolic term, or a function of nothing that gives one


class Face(Protocol):
    """What a symbolic face offers; each method gets evaluated terms."""

    def both(self, *terms: Term) -> Term: ...
    def either(self, *terms: Term) -> Term: ...
    def negate(self, term: Term) -> Term: ...
    def choose(self, condition: Term, yes: Any, no: Any) -> Any: ...
    def answers(self, content: Any, key: Any) -> Term: ...
    def extends(self, new: Any, old: Any) -> Term: ...
    def covers(self, key: Any, need: Any) -> Term: ...


symbolic: Face | None = None
_VALUES = frozenset((set, frozenset, list, tuple))  # rows of the concrete face


class OrderError(AssertionError):
    """An action read what it had written, or guarded after writing."""


def _face(term: Any) -> Face:
    if symbolic is None:
        raise TypeError(f"{term!r} is neither True nor False, and no symbolic face is installed")
    return symbolic


def _value(term: Term) -> Any:
    return term() if callable(term) else term


def both(*terms: Term) -> Term:
    """Every term holds."""
    for term in terms:
        value = term if term is True or term is False else _value(term)
        if value is False:
            return False
        if value is not True:
            return _face(value).both(*map(_value, terms))
    return True


def either(*terms: Term) -> Term:
    """Some term holds."""
    for term in terms:
        value = term if term is True or term is False else _value(term)
        if value is True:
            return True
        if value is not False:
            return _face(value).either(*map(_value, terms))
    return False


def negate(term: Term) -> Term:
    if term is True:
        return False
    if term is False:
        return True
    return _face(term).negate(term)


def implies(premise: Term, conclusion: Term) -> Term:
    return either(negate(premise), conclusion)


def choose(condition: Term, yes: Any, no: Any) -> Any:
    """`yes` where the condition holds, else `no`. Both are values, evaluated already."""
    if condition is True:
        return yes
    if condition is False:
        return no
    return _face(condition).choose(condition, yes, no)


def every(rows: Any, predicate: Callable[[Any], Term]) -> Term:
    """The predicate holds of each row; `rows` is what `Relation.of` or `Relation.at` gives."""
    if type(rows) not in _VALUES:
        return rows.every(predicate)
    for row in rows:  # noqa: SIM110 - a generator costs as much again, and this is the inner loop of every guard
        if predicate(row) is not True:
            return False
    return True


def some(rows: Any, predicate: Callable[[Any], Term]) -> Term:
    """The predicate holds of at least one row."""
    if type(rows) not in _VALUES:
        return rows.some(predicate)
    for row in rows:  # noqa: SIM110 - as above
        if predicate(row) is True:
            return True
    return False


def none(rows: Any) -> Term:
    """There is no row."""
    return not rows if type(rows) in _VALUES else rows.none()


def answers(content: Any, key: Any) -> Term:
    """Whether a reader that asks for `key` may read `content`."""
    return content.answers(key) if hasattr(content, "answers") else _face(content).answers(content, key)


def extends(new: Any, old: Any) -> Term:
    """Whether `new` answers whatever `old` answers, known without looking at keys."""
    own = getattr(new, "extends", None)
    return own(old) if own is not None else _face(new).extends(new, old)


def covers(key: Any, need: Any) -> Term:
    """Whether any content that answers `key` answers `need`."""
    own = getattr(key, "covers", None)
    return own(need) if own is not None else _face(key).covers(key, need)


_NOTHING: frozenset[Any] = frozenset()


def watched(cls: type[Any], reads: str, writes: str) -> type[Any]:
    """A subclass that raises `OrderError` where it is read after it was written, until `settle` is called."""

    def settle(self: Any) -> None:
        self._written = self._writing = False

    def reader(name: str) -> Callable[..., Any]:
        def read(self: Any, *args: Any) -> Any:
            if getattr(self, "_written", False) and not self._writing:
                raise OrderError(f"{cls.__name__}.{name} is read after it was written in the same action")
            return getattr(cls, name)(self, *args)

        return read

    def writer(name: str) -> Callable[..., None]:
        def write(self: Any, *args: Any) -> None:
            self._writing = True
            getattr(cls, name)(self, *args)
            self._written, self._writing = True, False

        return write

    methods: dict[str, Any] = {name: reader(name) for name in reads.split()}
    methods |= {name: writer(name) for name in writes.split()}
    return type(f"Watched{cls.__name__}", (cls,), methods | {"settle": settle})


class Relation(Generic[A, B]):
    """A set of pairs, indexed from both sides: every operation costs what it touches."""

    def __init__(self) -> None:
        self._of: defaultdict[A, set[B]] = defaultdict(set)  # no row and no column is empty
        self._at: defaultdict[B, set[A]] = defaultdict(set)

    def __getitem__(self, pair: tuple[A, B]) -> Term:
        return pair[1] in self._of.get(pair[0], _NOTHING)

    def of(self, left: A) -> Collection[B]:
        """All that `left` is related to."""
        return self._of.get(left, _NOTHING)

    def at(self, right: B) -> Collection[A]:
        """All that are related to `right`."""
        return self._at.get(right, _NOTHING)

    @property
    def columns(self) -> Mapping[B, Collection[A]]:
        """`at` for all that is related to anything."""
        return self._at

    def pairs(self) -> Iterable[tuple[A, B]]:
        """Every pair; for reports and whole-state checks, not for actions."""
        return [(left, right) for left, row in self._of.items() for right in row]

    def add(self, left: A, right: B) -> None:
        self._of[left].add(right)
        self._at[right].add(left)

    def add_if(self, condition: Term, left: A, right: B) -> None:
        if condition is True:
            self.add(left, right)

    def remove(self, left: A, right: B) -> None:
        """The pair goes; nothing happens where it was not there."""
        _drop(self._of, left, right)
        _drop(self._at, right, left)

    def clear_of(self, left: A) -> None:
        """All pairs of `left` go."""
        if left in self._of:
            for right in self._of.pop(left):
                _drop(self._at, right, left)

    def clear_at(self, right: B) -> None:
        """All pairs at `right` go."""
        if right in self._at:
            for left in self._at.pop(right):
                _drop(self._of, left, right)

    def set_of(self, left: A, right: B) -> None:
        """`left` is related to `right` and to nothing else."""
        self.clear_of(left)
        self.add(left, right)

    def hand_of(self, source: A, target: A) -> None:
        """What `source` was related to, `target` is from now on, and `source` to nothing."""
        row = tuple(self.of(source))
        self.clear_of(source)
        self.clear_of(target)
        for right in row:
            self.add(target, right)

    def hand_at(self, source: B, target: B) -> None:
        """What was related to `source` is related to `target` too from now on, and nothing to `source`."""
        column = tuple(self.at(source))
        self.clear_at(source)
        for left in column:
            self.add(left, target)

    def copy_at(self, other: Relation[A, B], right: B, target: B, but: A | None = None) -> None:
        """What is related to `right` in the other relation is related to `target` here too, `but` excepted."""
        for left in tuple(other.at(right)):
            if left is not but:
                self.add(left, target)

    def clear_of_each(self, lefts: Collection[A]) -> None:
        """All pairs of each of `lefts` go."""
        for left in lefts:
            self.clear_of(left)

    def clear(self) -> None:
        self._of.clear()
        self._at.clear()


def _drop(rows: dict[Any, set[Any]], left: object, right: object) -> None:
    row = rows.get(left)
    if row is not None:
        row.discard(right)
        if not row:
            del rows[left]


class Function(dict[A, V]):
    """A total map with a default. What it is asked for without having been set is not stored."""

    def __init__(self, default: V) -> None:
        super().__init__()
        self.default = default

    def __missing__(self, key: A) -> V:
        return self.default

    def set_each(self, flags: Function[A, bool], value: V) -> None:
        """The value wherever `flags` is true."""
        for key, flag in flags.items():
            if flag:
                dict.__setitem__(self, key, value)


class Layer(Function[A, V]):
    """A map that is another map until it is set: the content in a later part of the staged step."""

    def __init__(self, base: Function[A, V]) -> None:
        super().__init__(base.default)
        self.base = base
        self.floor: Function[A, V] = base.floor if isinstance(base, Layer) else base
        self.layers: tuple[Layer[A, V], ...] = (*base.layers, self) if isinstance(base, Layer) else (self,)

    def __missing__(self, key: A) -> V:
        return self.base[key]

    def sink(self) -> None:
        """What was set in this layer and in those below is so at the bottom, and all of them are transparent again."""
        for layer in self.layers:
            self.floor.update(layer)
            dict.clear(layer)
