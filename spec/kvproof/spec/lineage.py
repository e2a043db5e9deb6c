"""Who wrote these bytes, for which tokens: lineages, keys and contents.

A *lineage* is the identity of a token prefix (namespace, tokens[0:n]). It is a node of a tree that holds one node
for each prefix ever asked for, so two prefixes are equal exactly when they are the same object.

A *key* is a lineage seen by a group. A *content* is what a block holds; it answers a key or it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import eq
from typing import Any

from kvproof.spec.geometry import Group, Kind

STATE = Kind.STATE  # an enum is slow to ask


class Line(dict[int, "Lineage"]):
    """A text that somebody named: `line[n]` is its prefix of n tokens, made when first asked for.

    tokens: by length of the prefix that they end, after the namespace. A text that parts from it goes on in a line of its
    own, which has the prefixes shorter than `begin` from its parent. views: how groups see its prefixes, shared with them.
    """

    __slots__ = ("begin", "forks", "parent", "tokens", "views")

    def __init__(self, parent: Line | None, begin: int, tokens: list[Any], views: dict[int, Keys]) -> None:
        self.parent = parent
        self.begin = begin
        self.tokens = tokens
        self.views = views
        self.forks: dict[tuple[int, int], Line] = {}  # by the first length that differs, and the token there

    def __missing__(self, length: int) -> Lineage:
        line = self
        while length < line.begin and line.parent is not None:
            line = line.parent
        if not 0 <= length < len(line.tokens):
            raise IndexError(f"prefix({length}) of a line of {len(self.tokens) - 1} tokens")
        node = self[length] = Lineage(self, length) if line is self else line[length]
        return node

    def follow(self, length: int, tokens: list[int]) -> Line:
        """The line of the text that has the first `length` tokens of this one and then these."""
        line, at = self, length + 1
        while tokens:
            known = line.tokens[at : at + len(tokens)]
            if known == tokens[: len(known)]:
                line.tokens += tokens[len(known) :]
                break
            same = list(map(eq, known, tokens)).index(False)
            at, tokens = at + same, tokens[same:]
            fork = line.forks.get((at, tokens[0]))
            line.forks[at, tokens[0]] = line = Line(line, at, line.tokens[:at], line.views) if fork is None else fork
        return line


class Lineage:
    """A token prefix. Equal prefixes are the same object; compare with `is`."""

    __slots__ = ("length", "line")

    def __init__(self, line: Line, length: int) -> None:
        self.line = line
        self.length = length

    @property
    def token(self) -> Any:
        """The last one; of a root, its namespace."""
        return self.line.tokens[self.length]

    def then(self, token: int) -> Lineage:
        """The lineage with one more token."""
        return self.line.follow(self.length, [token])[self.length + 1]

    def extended(self, tokens: Iterable[int]) -> Lineage:
        """The lineage with more tokens."""
        more = list(tokens)
        return self.line.follow(self.length, more)[self.length + len(more)]

    def prefix(self, length: int) -> Lineage:
        """The lineage of the first `length` tokens; itself when that is its length."""
        if not 0 <= length <= self.length:
            raise IndexError(f"prefix({length}) of a lineage of {self.length} tokens")
        return self.line[length]

    def starts_with(self, other: Lineage) -> bool:
        length = other.length
        return self.length >= length and (self.line is other.line or self.line[length] is other)

    def tokens(self) -> list[int]:
        """The tokens, first to last. O(length); for reports."""
        return self.line.tokens[1 : self.length + 1]

    def key(self, group: Group) -> Key:
        """This lineage as the given group sees it."""
        return keys_of(group, self.line.views)[self]

    def __repr__(self) -> str:
        tail = self.tokens()[-3:]
        return f"<{self.length} tokens ..{','.join(map(str, tail))}>"


class Forest:
    """All lineages of one run, one tree per namespace (cache salt, adapter, weights epoch: what else the bytes depend on)."""

    def __init__(self) -> None:
        self._views: dict[int, Keys] = {}
        self._roots: dict[object, Lineage] = {}
        self._texts: dict[tuple[object, tuple[int, ...]], Path] = {}

    def root(self, namespace: object = None) -> Lineage:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Line(None, 0, [namespace], self._views)[0]
        return root

    def keys(self, group: Group) -> Keys:
        """All of its lineages as the given group sees them."""
        return keys_of(group, self._views)

    def text(self, prompt: tuple[int, ...], namespace: object = None) -> Path:
        """A prompt, and after it whatever those who ask let it grow into: they share it, as they agree on what follows."""
        text = self._texts.get((namespace, prompt))
        if text is None:
            text = self._texts[namespace, prompt] = Path(self.root(namespace), prompt)
        return text


class Path:
    """The lineages of one request's text, `path[n]` being that of its first n tokens. It only grows."""

    __slots__ = ("length", "line")

    def __init__(self, root: Lineage, tokens: Iterable[int] = ()) -> None:
        self.line = root.line
        self.length = root.length
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        more = list(tokens)
        self.line = self.line.follow(self.length, more)
        self.length += len(more)

    def upto(self, length: int, follow: Callable[[Lineage], int]) -> Lineage:
        """The first `length` tokens, after as many steps of `follow`, which gives the next token of a text, as it takes."""
        line = self.line
        while self.length < length:
            line = self.line = line.follow(self.length, [follow(line[self.length])])
            self.length += 1
        return line[length]

    def first(self, length: int) -> Path:
        """Its first `length` tokens, to grow on their own."""
        path = Path(self.line[0])
        path.line, path.length = self[length].line, length
        return path

    def __getitem__(self, length: int) -> Lineage:
        if not 0 <= length <= self.length:
            raise IndexError(f"prefix({length}) of a text of {self.length} tokens")
        return self.line[length]

    def __len__(self) -> int:
        """Number of tokens."""
        return self.length

    def __iter__(self) -> Iterator[Lineage]:
        return map(self.line.__getitem__, range(self.length + 1))


class Key:
    """A lineage seen by a group: what a block may be found under, and what a reader may need. Made by `Keys`.

    base: first token of the table slot whose block may carry this key. content: what holds all that it asks for, and no more.
    """

    __slots__ = ("base", "content", "group", "lineage")

    def __init__(self, group: Group, lineage: Lineage) -> None:
        self.group = group
        self.lineage = lineage
        length, size = lineage.length, group.block_size
        self.base = base = (length - 1) // size * size
        self.content: Content = StateAt(group, lineage) if group.kind is STATE else Rows(group, ((base, lineage),))

    @property
    def partial(self) -> bool:
        return self.lineage.length % self.group.block_size != 0

    @property
    def slot(self) -> int:
        """The table slot whose block may carry this key."""
        return self.base // self.group.block_size

    def over(self, old: Content, start: int) -> Content:
        """The content after the forward pass wrote this lineage, from token `start` on, into a block that held `old`.

        A state keeps nothing of what was there; rows keep the slots outside the range. The result has one run where the
        write continues or repeats the old rows of the same text.
        """
        lineage, group, base = self.lineage, self.group, self.base
        if group.kind is STATE:
            return self.content
        stop = lineage.length
        runs: tuple[Run, ...] = ()
        if isinstance(old, Rows) and old.group is group and base <= old.runs[0][0] < base + group.block_size:
            runs = old.runs  # rows of another slot are bytes of other positions: nobody can read them here
            old_start, wrote = runs[0]
            same = wrote.line is lineage.line or (start <= wrote.length and wrote.prefix(start) is lineage.prefix(start))
            if len(runs) == 1 and old_start <= start <= wrote.length and same:
                if wrote.length <= stop:
                    start, runs = old_start, ()
                elif wrote.starts_with(lineage):
                    return old
        if not runs and start == base:
            return self.content
        before = tuple((a, w if w.length <= start else w.prefix(start)) for a, w in runs if a < start)
        after = tuple((max(a, stop), w) for a, w in runs if w.length > stop)
        return Rows(group, (*before, (start, lineage), *after))

    def covers(self, other: Key) -> bool:
        """Whether content that answers this key also answers the other one, whatever that content is.

        Append-only: the other is a prefix of this one inside the same block. State: they are the same key.
        """
        if self is other:
            return True
        return (
            self.group is other.group
            and self.group.kind is not STATE
            and self.base == other.base
            and self.lineage.starts_with(other.lineage)
        )

    def __repr__(self) -> str:
        return f"g{self.group.index}:{self.lineage!r}"


class Keys(dict[Lineage, Key]):
    """Lineages as one group sees them, each made when first asked for."""

    __slots__ = ("group",)

    def __init__(self, group: Group) -> None:
        self.group = group

    def __missing__(self, lineage: Lineage) -> Key:
        key = self[lineage] = Key(self.group, lineage)
        return key


def keys_of(group: Group, views: dict[int, Keys]) -> Keys:
    """The keys of a group among the views of a forest, which has one for each group that was asked for."""
    keys = views.get(group.index)
    if keys is None:
        keys = views[group.index] = Keys(group)
    return keys


class Content:
    """What a block holds. The base class holds nothing known and answers no key."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def answers(self, key: Key) -> bool:
        return False

    def extends(self, old: Content) -> bool:
        """Whether each key that `old` answers is answered by this content too, seen without looking at keys."""
        return self is old

    def __repr__(self) -> str:
        return self.name


UNKNOWN = Content("unknown")
ZERO = Content("zero")

Run = tuple[int, Lineage]  # start, lineage: token slot t of [start, lineage.length) holds lineage.prefix(t + 1)


class Rows(Content):
    """An append-only block: for each token slot the lineage that wrote it, as runs in order of their start."""

    __slots__ = ("group", "runs")

    def __init__(self, group: Group, runs: tuple[Run, ...]) -> None:
        self.group = group
        self.runs = runs

    def answers(self, key: Key) -> bool:
        if self is key.content:
            return True
        if key.group is not self.group:
            return False
        lineage, at = key.lineage, key.base
        end = lineage.length
        for start, wrote in self.runs:
            if start > at:
                return False
            if wrote.length > at:
                at = min(wrote.length, end)
                if wrote.prefix(at) is not lineage.prefix(at):
                    return False
                if at == end:
                    return True
        return False

    def extends(self, old: Content) -> bool:
        if not isinstance(old, Rows):
            return type(old) is Content  # nothing known answers nothing
        if old is self or old.group is not self.group or len(self.runs) > 1 or len(old.runs) > 1:
            return old is self
        (start, wrote), (old_start, old_wrote) = self.runs[0], old.runs[0]
        return start <= old_start and wrote.starts_with(old_wrote)

    def __repr__(self) -> str:
        return "+".join(f"rows[{start}:{wrote.length}]{wrote!r}" for start, wrote in self.runs)


class StateAt(Content):
    """A recurrent state after exactly the tokens of one lineage."""

    __slots__ = ("group", "lineage")

    def __init__(self, group: Group, lineage: Lineage) -> None:
        self.group = group
        self.lineage = lineage

    def answers(self, key: Key) -> bool:
        return key.lineage is self.lineage and key.group is self.group

    def extends(self, old: Content) -> bool:
        if isinstance(old, StateAt):
            return old.lineage is self.lineage and old.group is self.group
        return type(old) is Content

    def __repr__(self) -> str:
        return f"state@{self.lineage!r}"


def written(old: Content, group: Group, start: int, stop: int, lineage: Lineage) -> Content:
    """The content after the forward pass wrote tokens [start, stop) of `lineage` into a block that held `old`."""
    return lineage.prefix(stop).key(group).over(old, start)
