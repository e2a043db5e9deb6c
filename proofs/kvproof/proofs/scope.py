"""A tiny world whose elements are concrete objects of the rules, so that every model of a formula is a run that can be run.

Quantifiers are expanded. A relation is one truth value per pair, a function one value per entry: its *cells*. What the proofs
assume of contents and keys is here a table, made by asking the objects themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import Any

import z3

from kvproof.proofs.face import Expr, SomeState, World, arguments, empty, parts, sorts_of, taken, truth
from kvproof.proofs.obligations import Tables, clauses_of
from kvproof.spec.geometry import Geometry
from kvproof.spec.lineage import UNKNOWN, ZERO, Forest
from kvproof.spec.state import Holder, Owner

Guard = tuple[str, str]  # an action and the name of one of its guards


KINDS, TEXTS = ("rows", "state"), ("ab", "abcd")


def named(
    blocks: int = 2, holders: int = 5, owners: str = "rs", texts: Iterable[str] = TEXTS, kinds: Iterable[str] = KINDS
) -> dict[str, dict[str, Any]]:
    """The objects of a scope by sort and name: so many blocks beside the null block, so many holders, an owner per letter, a
    key per kind of group and text, a content that answers each key, and the contents that answer none. Units have two
    letters, blocks of both kinds two units."""
    root, groups = Forest().root(), dict(zip(KINDS, Geometry.of(4, (4,), unit=2).groups, strict=True))
    keys = {f"{kind} {text}": root.extended(map(ord, text)).key(groups[kind]) for kind in kinds for text in texts}
    return {
        "Block": {f"{i}": i for i in range(blocks + 1)},
        "Holder": {f"h{i + 1}": Holder(0, (f"h{i + 1}",)) for i in range(holders)},
        "Owner": {name: Owner("request", name) for name in owners},
        "Key": dict(keys),
        "Content": {"unknown": UNKNOWN, "zero": ZERO} | {name: key.content for name, key in keys.items()},
    }


class Scope(World):
    """A world of the given objects, in which at most so many steps are issued. `rows`: the term of each object, by sort."""

    def __init__(self, objects: Mapping[str, Mapping[str, Any]] | None = None, steps: int = 3) -> None:
        self.objects, self.steps = objects or named(), steps
        self.sorts: dict[str, Any] = {"int": z3.BitVecSort((steps + 2).bit_length() + 1), "bool": z3.BoolSort()}
        self.rows: dict[str, list[Expr]] = {}
        for sort, members in self.objects.items():
            bits = max(1, (len(members) - 1).bit_length())
            self.sorts[sort] = z3.BitVecSort(bits)
            self.rows[sort] = [z3.BitVecVal(i, bits) for i in range(len(members))]
        self.null = self.rows["Block"][0]
        self.contents = dict(zip(self.objects["Content"].values(), self.rows["Content"], strict=True))
        self.unordered = self.constant("unordered", "bool")
        self.answers = self.table("Content", "Key", lambda content, key: content.answers(key))
        self.extends = self.table("Content", "Content", lambda new, old: new.extends(old))
        self.covers = self.table("Key", "Key", lambda key, need: key.covers(need))

    def table(self, left: str, right: str, holds: Callable[[Any, Any], bool]) -> Callable[..., Expr]:
        lefts, rights = ([*self.objects[sort].values()] for sort in (left, right))
        return self.tabled((left, right), lambda i, j: z3.BoolVal(holds(lefts[i], rights[j])))

    def function(self, name: str, *sorts: str) -> Callable[..., Expr]:
        return self.tabled(sorts[:-1], lambda *at: z3.Const(" ".join(map(str, (name, *at))), self.sorts[sorts[-1]]))

    def tabled(self, sorts: tuple[str, ...], make: Callable[..., Expr]) -> Callable[..., Expr]:
        cells = {at: make(*at) for at in product(*(range(len(self.rows[sort])) for sort in sorts))}

        def found(at: tuple[int, ...], *values: Expr) -> Expr:
            """The cell at the values, which are elements or terms that may be any element."""
            if not values:
                return cells[at]
            value, *others = values
            if z3.is_bv_value(value):
                return found((*at, value.as_long()), *others)
            cell = found((*at, 0), *others)
            for i, row in enumerate(self.rows[sorts[len(at)]][1:], 1):
                cell = z3.If(value == row, found((*at, i), *others), cell)
            return cell

        return lambda *values: found((), *values)

    def every(self, sort: str, predicate: Callable[[Expr], Expr]) -> Expr:
        return z3.And([truth(predicate(row)) for row in self.rows[sort]])

    def some(self, sort: str, predicate: Callable[[Expr], Expr]) -> Expr:
        return z3.Or([truth(predicate(row)) for row in self.rows[sort]])

    def name(self, sort: str, value: Expr) -> str:
        """What an element is called; of a step, its number."""
        return [*self.objects[sort]][value.as_long()] if sort in self.objects else str(value.as_signed_long())

    def cells(self, state: SomeState, *, read: bool = False) -> list[Expr]:
        """What is in each cell of a state, in a fixed order; with `read`, what a reader finds there."""
        found = [state.issued, state.completed]
        for name, (kind, sorts) in parts().items():
            part, width = getattr(state, name), 2 if kind == "Relation" else 1
            for row in product(*(self.rows[sort] for sort in sorts[:width])):
                if read:
                    found.append(part[row if width == 2 else row[0]])
                else:
                    found += [fn(*row) for fn in ((part.fn, part.own) if kind == "Layer" else (part.fn,))]
        return found


class Rules:
    """Actions and clauses as formulas over one step: the cells before it, its action and arguments, the cells after it.

    does: the action of the step, by name. holds: whether a guard of it holds, by action and guard. kept: each clause, of the
    state after the step; broken: not all of them. changes: the step does something. tidy: where rules allow any content,
    nothing known is left, and no fence is of a negative step. start: of the cells before the first step. step: what a
    step does, its guards left out; elements that could be swapped are named in the order of their numbers, which spares a
    search the other runs; so a goal may not ask for one of them by name.
    """

    def __init__(self, world: Scope, rules: Tables) -> None:
        (actions, clauses), self.world, self.actions = rules, world, rules.actions
        before, after, first = SomeState(world), SomeState(world, "'"), empty(world)
        first.issued = first.completed = 0
        self.before, self.after, starts = world.cells(before), world.cells(after), world.cells(first)
        self.action = z3.BitVec("action", len(actions).bit_length())
        self.does = {name: self.action == i for i, name in enumerate(actions)}
        self.arguments = {name: arguments(world, action) for name, action in actions.items()}
        self.holds: dict[Guard, Expr] = {}
        self.kept = clauses_of(world, after, clauses)
        self.broken = z3.Not(z3.And([*self.kept.values()]))
        step, values = [z3.ULT(self.action, len(actions)), after.issued <= world.steps], list(self.before)
        for name, action in actions.items():
            state = SomeState(world)
            for guard, term in taken(world, action, state, self.arguments[name]).items():
                self.holds[name, guard] = z3.Bool(f"{name} / {guard}")
                step.append(self.holds[name, guard] == term)
            for i, (old, new) in enumerate(zip(self.before, world.cells(state), strict=True)):
                if new is not old and not (value := z3.simplify(old.sort().cast(new))).eq(old):
                    values[i] = z3.If(self.does[name], value, values[i])
        for sort in world.rows:
            values += self._named_in_order(sort, step, starts)
        step += [new == value for new, value in zip(self.after, values, strict=True)]
        olds, news = (world.cells(state, read=True) for state in (before, after))
        self.changes = z3.Or([old != new for old, new in zip(olds, news, strict=True)])
        plain = {"junk": lambda symbol: symbol == world.contents[UNKNOWN], "until": lambda symbol: symbol >= 0}
        given = [pair for name, action in actions.items() for pair in zip(action.parameters, self.arguments[name], strict=True)]
        self.tidy = z3.And([plain[parameter](symbol) for parameter, symbol in given if parameter in plain])
        self.start = z3.And([old == old.sort().cast(value) for old, value in zip(self.before, starts, strict=True)])
        self.step = z3.simplify(z3.And(step))

    def legal(self, dropped: Guard | None = None) -> Expr:
        """The step violates no guard, the dropped one left aside."""
        return z3.And([z3.Implies(self.does[g[0]], holds) for g, holds in self.holds.items() if g != dropped])

    def _named_in_order(self, sort: str, step: list[Expr], starts: list[Expr]) -> list[Expr]:
        rows = self.world.rows[sort]
        swapped = {"Block": rows[1:], "Holder": rows, "Owner": rows}.get(sort, [])
        before, after = ([z3.Bool(f"{sort} {row} was named{tag}") for row in swapped] for tag in ("", "'"))
        values = list(before)
        for name, action in self.actions.items():
            symbols = [s for s, its in zip(self.arguments[name], sorts_of(action), strict=True) if its == sort]
            step += [
                z3.Implies(self.does[name], z3.ULT(symbol, len(rows))) for symbol in symbols if len(rows) < 2 ** symbol.size()
            ]
            for i, row in enumerate(swapped):
                values[i] = z3.Or(values[i], z3.And(self.does[name], z3.Or([symbol == row for symbol in symbols])))
                for j, symbol in enumerate(symbols if i else ()):
                    sooner = z3.Or(before[i - 1], *(other == swapped[i - 1] for other in symbols[:j]))
                    step.append(z3.Implies(z3.And(self.does[name], symbol == row), sooner))
        self.before += before
        self.after += after
        starts += [False] * len(before)
        return values
