"""Who wrote these bytes, for which tokens: lineages, keys and contents.

A *lineage* is the identity of a token prefix (namespace, tokens[0:n]). It is a node of a tree that holds one node
for each prefix ever named, so two prefixes are equal exactly when they are the same object, and a prefix of a lineage is
reached in O(log n) steps over skip pointers (Myers, "An applicative random-access stack", 1983).

A *key* is a lineage seen by a group. A *content* is what a block holds; it answers a key or it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from kvproof.spec.geometry import Group, Kind


class Lineage:
    """A token prefix. Equal prefixes are the same object; compare with `is`."""

    __slots__ = ("_child", "_children", "_jump", "_keys", "length", "parent", "token")

    def __init__(self, parent: Lineage | None, token: object) -> None:
        self.parent = parent
        self.token = token
        self._child: Lineage | None = None  # the first one: most nodes have no other
        self._children: dict[object, Lineage] | None = None  # the others
        self._keys: dict[int, Key] | None = None
        if parent is None:
            self.length = 0
            self._jump = self
        else:
            self.length = parent.length + 1
            near = parent._jump
            far = near._jump
            self._jump = far if parent.length - near.length == near.length - far.length else parent

    def then(self, token: int) -> Lineage:
        """The lineage with one more token."""
        child = self._child
        if child is None:
            child = self._child = Lineage(self, token)
        elif child.token != token:
            others = self._children
            if others is None:
                others = self._children = {}
            child = others.get(token)
            if child is None:
                child = others[token] = Lineage(self, token)
        return child

    def extended(self, tokens: Iterable[int]) -> Lineage:
        """The lineage with more tokens."""
        node = self
        for token in tokens:
            node = node.then(token)
        return node

    def prefix(self, length: int) -> Lineage:
        """The lineage of the first `length` tokens; itself when that is its length."""
        if length == self.length:
            return self
        if not 0 <= length < self.length:
            raise IndexError(f"prefix({length}) of a lineage of {self.length} tokens")
        node = self
        while node.length > length:
            jump = node._jump
            if jump.length >= length:
                node = jump
            else:
                assert node.parent is not None
                node = node.parent
        return node

    def starts_with(self, other: Lineage) -> bool:
        return self.length >= other.length and self.prefix(other.length) is other

    def tokens(self) -> list[int]:
        """The tokens, first to last. O(length); for reports."""
        out: list[int] = []
        node = self
        while node.parent is not None:
            if isinstance(node.token, int):
                out.append(node.token)
            node = node.parent
        return out[::-1]

    def key(self, group: Group) -> Key:
        """This lineage as the given group sees it."""
        keys = self._keys
        if keys is None:
            keys = self._keys = {}
        key = keys.get(group.index)
        if key is None:
            key = keys[group.index] = Key(group, self)
        return key

    def __repr__(self) -> str:
        tail = self.tokens()[-3:]
        return f"<{self.length} tokens ..{','.join(map(str, tail))}>"


class Forest:
    """All lineages of one run, one tree per namespace (cache salt, adapter, weights epoch: what else the bytes depend on)."""

    def __init__(self) -> None:
        self._roots: dict[object, Lineage] = {}
        self._texts: dict[tuple[object, tuple[int, ...]], Path] = {}

    def root(self, namespace: object = None) -> Lineage:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Lineage(None, namespace)
        return root

    def text(self, prompt: tuple[int, ...], namespace: object = None) -> Path:
        """A prompt, and after it whatever those who ask let it grow into: they share it, as they agree on what follows."""
        text = self._texts.get((namespace, prompt))
        if text is None:
            text = self._texts[namespace, prompt] = Path(self.root(namespace), prompt)
        return text


class Path:
    """The lineages of one request's text, `path[n]` being that of its first n tokens; `nodes` lists them. It only grows."""

    __slots__ = ("nodes",)

    def __init__(self, root: Lineage, tokens: Sequence[int] = ()) -> None:
        self.nodes = [root]
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        node, nodes = self.nodes[-1], self.nodes
        for token in tokens:
            child = node._child
            if child is None:
                child = node._child = Lineage(node, token)
            elif child.token != token:
                child = node.then(token)
            nodes.append(child)
            node = child

    def upto(self, length: int, follow: Callable[[Lineage], int]) -> Lineage:
        """The first `length` tokens, after as many steps of `follow`, which gives the next token of a text, as it takes."""
        nodes = self.nodes
        while len(nodes) <= length:
            nodes.append(nodes[-1].then(follow(nodes[-1])))
        return nodes[length]

    def __getitem__(self, length: int) -> Lineage:
        return self.nodes[length]

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.nodes) - 1

    def __iter__(self) -> Iterator[Lineage]:
        return iter(self.nodes)


class Key:
    """A lineage seen by a group: what a block may be found under, and what a reader may need. Made by `Lineage.key`.

    base: first token of the table slot whose block may carry this key. content: what holds all that it asks for, and no more.
    """

    __slots__ = ("base", "content", "group", "lineage")

    def __init__(self, group: Group, lineage: Lineage) -> None:
        self.group = group
        self.lineage = lineage
        length, size = lineage.length, group.block_size
        self.base = base = (length - 1) // size * size
        self.content: Content = StateAt(group, lineage) if group.kind is Kind.STATE else Rows(group, ((base, lineage),))

    @property
    def partial(self) -> bool:
        return self.lineage.length % self.group.block_size != 0

    @property
    def slot(self) -> int:
        """The table slot whose block may carry this key."""
        return self.base // self.group.block_size

    def covers(self, other: Key) -> bool:
        """Whether content that answers this key also answers the other one, whatever that content is.

        Append-only: the other is a prefix of this one inside the same block. State: they are the same key.
        """
        if self is other:
            return True
        return (
            self.group is other.group
            and self.group.kind is Kind.APPEND_ONLY
            and self.base == other.base
            and self.lineage.starts_with(other.lineage)
        )

    def __repr__(self) -> str:
        return f"g{self.group.index}:{self.lineage!r}"


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
    """The content after the forward pass wrote tokens [start, stop) of `lineage` into a block that held `old`.

    start, stop: token positions inside one block. A state keeps nothing of what was there; rows keep the slots outside the
    range. The result has one run where the write continues or repeats the old rows of the same text.
    """
    lineage = lineage.prefix(stop)
    key = lineage.key(group)
    if group.kind is Kind.STATE:
        return key.content
    runs: tuple[Run, ...] = ()
    if isinstance(old, Rows) and old.group is group and old.runs[0][0] // group.block_size == start // group.block_size:
        runs = old.runs  # rows of another slot are bytes of other positions: nobody can read them here
    if len(runs) == 1:
        old_start, wrote = runs[0]
        if old_start <= start <= wrote.length and wrote.prefix(start) is lineage.prefix(start):
            if wrote.length <= stop:
                start, runs = old_start, ()
            elif wrote.prefix(stop) is lineage:
                return old
    if not runs and start == key.base:
        return key.content
    before = tuple((a, w if w.length <= start else w.prefix(start)) for a, w in runs if a < start)
    after = tuple((max(a, stop), w) for a, w in runs if w.length > stop)
    return Rows(group, (*before, (start, lineage), *after))
