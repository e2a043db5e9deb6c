"""The actions as straight Python: the same rules, without a call per word, for monitors that take them at every step.

The third face of `kvproof.spec.logic`, beside the one that computes and the one that proves. An action has no loop and no
branch, so running it once on symbols spells out all that it ever does: the guards that it asks, the snapshots, the writes.
`compiled` runs each action of `kvproof.spec.actions` so, writes that down as a function, and binds it to one state. Nothing
is said twice: the rules are read off the actions, whatever they say. `tests/machines/test_compiled.py` holds both together.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from inspect import getsource
from textwrap import dedent
from types import CodeType
from typing import Any

from kvproof.spec import logic
from kvproof.spec.actions import ACTIONS
from kvproof.spec.logic import Function, Layer, Relation
from kvproof.spec.state import State

Refuse = Callable[[str, str, tuple[Any, ...]], object]  # guard, action, arguments
Taken = Callable[..., bool]

COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "add": "+"}


class Actions:
    """Every action of one state by name, without the state as an argument. Each says whether any of its guards refused."""

    def __init__(self, taken: dict[str, Taken], counted: Callable[[], tuple[int, ...]]) -> None:
        vars(self).update(taken)
        self._counted = counted

    def counts(self) -> Counter[str]:
        """How often each action was taken, those that never were left out."""
        return +Counter(dict(zip(ACTIONS, self._counted(), strict=True)))

    def __getattr__(self, name: str) -> Taken:
        raise AttributeError(f"no action is named {name!r}")


def compiled(state: State, refuse: Refuse) -> Actions:
    """The actions of `state`. They go on where a guard refuses, after a call of `refuse`."""
    known = dict(vars(logic))  # for methods of relations that are written out
    exec(program(state.unordered), known)
    return Actions(*known["bound"](state, refuse))


# ------------------------------------------------------------------------------------------------------- symbols and terms


@dataclass(eq=False, frozen=True, slots=True)
class Symbol:
    """A value that an expression gives."""

    text: str

    def __str__(self) -> str:
        return self.text

    def __hash__(self) -> int:
        return hash(self.text)


def _operator(sign: str) -> Callable[[Symbol, object], Symbol]:
    return lambda self, other: Symbol(f"({self} {sign} {other})")


for _name, _sign in COMPARISONS.items():
    setattr(Symbol, f"__{_name}__", _operator(_sign))


@dataclass(frozen=True, slots=True)
class Joined:
    """All terms hold ("and"), or some do ("or")."""

    word: str
    terms: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Not:
    term: Any


@dataclass(frozen=True, slots=True)
class Each:
    """A predicate holds of every row, or of some row."""

    word: str
    rows: Symbol
    row: Symbol
    term: Any


def truth(term: Any, into: str) -> Iterator[str]:
    """Lines that work out a term. Rows are walked in loops, which cost less than generators."""
    if isinstance(term, Joined):
        yield from truth(term.terms[0], into)
        for level, rest in enumerate(term.terms[1:]):
            yield f"{' ' * level}if {'' if term.word == 'and' else 'not '}{into}:"
            yield from indented(truth(rest, into), level + 1)
    elif isinstance(term, Not):
        yield from truth(term.term, into)
        yield f"{into} = not {into}"
    elif isinstance(term, Each):
        yield f"{into} = {term.word == 'every'}"
        yield f"for {term.row} in {term.rows}:"
        yield from indented(truth(term.term, into))
        yield f" if {'not ' if term.word == 'every' else ''}{into}: break"
    else:
        yield f"{into} = {term}"


def indented(lines: Iterable[str], by: int = 1) -> Iterator[str]:
    return (" " * by + line for line in lines)


def plain(term: Any) -> bool:
    return isinstance(term, Symbol | bool)


# ----------------------------------------------------------------------------------------------------- a state of symbols


class Trace:
    """What one action does, written down while it runs: guards and snapshots, then writes. Also the face that it meets."""

    def __init__(self, action: str, arguments: str) -> None:
        self.guarded: list[str] = []
        self.writes: list[str] = []
        self.names: dict[str, Symbol] = {}
        self.count = 0
        self.inside = 0  # predicates of rows under way: what they ask depends on the row
        self.refusal = f"refuse({{!r}}, {action!r}, ({arguments}))"

    def name(self) -> Symbol:
        self.count += 1
        return Symbol(f"_{self.count}")

    def kept(self, term: Any) -> Any:
        """A name for what the term is before the first write."""
        if self.inside or str(term).isidentifier():
            return term
        known = self.names.get(str(term))
        if known is None:
            known = self.names[str(term)] = self.name()
            self.guarded += truth(term, str(known))
        return known

    def require(self, guard: str, term: Any) -> None:
        if term is True:
            return
        refusal = [" refused = True", f" {self.refusal.format(guard)}"]
        if isinstance(term, Joined) and term.word == "or" and plain(term.terms[0]):
            rest = self.name()  # worked out where the first term does not hold
            lines = [*truth(Joined("or", term.terms[1:]), str(rest)), f"if not {rest}:", *refusal]
            self.guarded += [f"if not {term.terms[0]}:", *indented(lines)]
        else:
            self.guarded += [f"if not {term if plain(term) else self.kept(term)}:", *refusal]

    def write(self, lines: Callable[..., Iterable[str]], *values: Any) -> None:
        """Values are those from before the first write."""
        self.writes += lines(*(str(self.kept(value)) for value in values))

    def each(self, word: str, rows: Symbol, predicate: Callable[[Any], Any]) -> Any:
        row = self.name()
        self.inside += 1
        term = predicate(row)
        self.inside -= 1
        return Each(word, rows, row, term)

    # The words of `logic`.

    def both(self, *terms: Any) -> Any:
        return self.joined("and", True, terms)

    def either(self, *terms: Any) -> Any:
        return self.joined("or", False, terms)

    def joined(self, word: str, neutral: bool, terms: tuple[Any, ...]) -> Any:
        told = tuple(term for term in terms if term is not neutral)
        if any(term is (not neutral) for term in told):
            return not neutral
        if len(told) < 2:
            return told[0] if told else neutral
        return Symbol(f"({f' {word} '.join(map(str, told))})") if all(map(plain, told)) else Joined(word, told)

    def negate(self, term: Any) -> Any:
        return Symbol(f"(not {term})") if plain(term) else Not(term)

    def choose(self, condition: Any, yes: Any, no: Any) -> Any:
        return self.kept(Symbol(f"{yes} if {condition if plain(condition) else self.kept(condition)} else {no}"))

    def answers(self, content: Any, key: Any) -> Any:
        content = self.kept(content)
        return self.kept(Symbol(f"({content} is {key}.content or {content}.answers({key}))"))  # as all content does its key

    def extends(self, new: Any, old: Any) -> Any:
        return Symbol(f"{new}.extends({old})")  # worked out where nothing else helps

    def covers(self, key: Any, need: Any) -> Any:
        return self.kept(Symbol(f"{key}.covers({need})"))


class SomeRows:
    """What `of` and `at` give."""

    def __init__(self, trace: Trace, rows: str, side: str, of: Any) -> None:
        self.trace = trace
        self.text = f"{rows}{side}({of}, ())"
        self.empty = Symbol(f"({of} not in {rows}_{side})")  # no empty row is kept

    def __str__(self) -> str:
        return self.text

    def every(self, predicate: Callable[[Any], Any]) -> Any:
        return self.trace.each("every", Symbol(self.text), predicate)

    def some(self, predicate: Callable[[Any], Any]) -> Any:
        return self.trace.each("some", Symbol(self.text), predicate)

    def none(self) -> Symbol:
        return self.empty


class Part:
    """A relation or function of the state. What it does not say below is a write that goes to the real one."""

    def __init__(self, trace: Trace, name: str, real: Any) -> None:
        self._trace = trace
        self._name = name
        self._real = real

    def __str__(self) -> str:
        return self._name

    def __getattr__(self, method: str) -> Callable[..., None]:
        return lambda *values: self._trace.write(lambda *told: written(self._name, self._real.__class__, method, told), *values)


class SomeRelation(Part):
    def __getitem__(self, pair: tuple[Any, Any]) -> Symbol:
        return Symbol(f"({pair[1]} in {self._name}_of({pair[0]}, ()))")

    def of(self, left: Any) -> SomeRows:
        return SomeRows(self._trace, self._name, "_of", left)

    def at(self, right: Any) -> SomeRows:
        return SomeRows(self._trace, self._name, "_at", right)


class SomeFunction(Part):
    def __getitem__(self, key: Any) -> Symbol:
        below, layers = self._real, [f"{self._name}_get"]
        while isinstance(below, Layer):
            below = below.base
            layers.append(next(f"state_{name}_get" for name, part in PARTS.items() if part is below))
        above = "".join(f"_v if (_v := {get}({key})) is not None else " for get in layers[:-1])
        default = "" if self._real.default is False else f", {self._name}_default"  # None is as good as False here
        return Symbol(f"({above}{layers[-1]}({key}{default}))")

    def __setitem__(self, key: Any, value: Any) -> None:
        self._trace.write(lambda key, value: [f"{self._name}[{key}] = {value}"], key, value)


def written(name: str, kind: type[Any], method: str, values: tuple[str, ...]) -> Iterator[str]:
    """A call of a method, or what it does where that is a relation's."""
    if issubclass(kind, Function):
        yield f"{name}.{method}({', '.join(values)})"
    else:
        for statement in Inlined.of(getattr(kind, method), kind, name, values):
            yield from ast.unparse(statement).splitlines()


class Inlined(ast.NodeTransformer):
    """The statements of a method of a part, and of what it calls in turn, with values in place of its parameters."""

    @classmethod
    def of(cls, function: Any, kind: type[Any], part: str, values: Sequence[str], depth: int = 1) -> list[ast.stmt]:
        (tree,) = ast.parse(dedent(getsource(function))).body
        assert isinstance(tree, ast.FunctionDef)
        stored = (node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        names = {name: "_" * depth + name for name in stored}  # none that a caller uses
        parameters = [argument.arg for argument in tree.args.args if argument.arg != "self"]
        defaults = list(map(ast.unparse, tree.args.defaults))
        given = [*values, *defaults[len(defaults) + len(values) - len(parameters) :]]
        inlined = cls(kind, part, names | {"self": part} | dict(zip(parameters, given, strict=True)), depth)
        body = tree.body[ast.get_docstring(tree) is not None :]
        return inlined.visit(ast.Module(body, [])).body  # type: ignore[no-any-return]

    def __init__(self, kind: type[Any], part: str, values: dict[str, str], depth: int) -> None:
        self.kind = kind
        self.part = part
        self.values = values
        self.depth = depth

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.values.get(node.id, node.id), node.ctx)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        value = self.visit(node.value)
        own = isinstance(node.value, ast.Name) and node.value.id == "self" and node.attr.startswith("_")
        return ast.Name(f"{self.part}_{node.attr}") if own else ast.Attribute(value, node.attr)

    def visit_Expr(self, node: ast.Expr) -> ast.stmt | list[ast.stmt]:
        match node.value:
            case ast.Call(ast.Attribute(ast.Name("self"), method), arguments):
                function = getattr(self.kind, method)
            case ast.Call(ast.Name(name), arguments):
                function = getattr(logic, name)
            case _:
                return ast.Expr(self.visit(node.value))
        given = [ast.unparse(self.visit(argument)) for argument in arguments]
        return self.of(function, self.kind, self.part, given, self.depth + 1)


REAL = State()
PARTS = {name: part for name, part in vars(REAL).items() if isinstance(part, Relation | Function)}


class SymbolicState(State):
    """A state that notes what an action does to it."""

    def __init__(self, trace: Trace, *, unordered: bool) -> None:
        values: dict[str, Any] = {
            name: (SomeFunction if isinstance(part, Function) else SomeRelation)(trace, f"state_{name}", part)
            for name, part in PARTS.items()
        }
        values |= {name: Symbol(f"state.{name}") for name in ("zero", "issued", "completed")}
        vars(self).update(values, trace=trace, unordered=unordered, null=REAL.null)

    def require(self, guard: str, term: Any) -> None:
        vars(self)["trace"].require(guard, term)

    def __setattr__(self, name: str, value: Any) -> None:
        vars(self)["trace"].write(lambda value: [f"state.{name} = {value}"], value)


# ----------------------------------------------------------------------------------------------------------- the program


@contextmanager
def face(trace: Trace) -> Iterator[None]:
    before, logic.symbolic = logic.symbolic, trace
    try:
        yield
    finally:
        logic.symbolic = before


def function(name: str, *, unordered: bool) -> Iterator[str]:
    """The lines of one action."""
    action = ACTIONS[name]
    arguments = "".join(f"{parameter}, " for parameter in action.parameters)
    trace = Trace(name, arguments)
    with face(trace):
        action.apply(SymbolicState(trace, unordered=unordered), *map(Symbol, action.parameters))
    yield f"def {name}({arguments}):"
    count = [f"nonlocal count_{name}", f"count_{name} += 1"]
    yield from indented([*count, "refused = False", *trace.guarded, *trace.writes, "return refused"])


def source(*, unordered: bool) -> str:
    """A function `bound` of a state that gives its actions, and what tells how often each was taken."""
    lines = [f"count_{name} = 0" for name in ACTIONS]
    for name, part in PARTS.items():
        local = f"state_{name}"
        lines.append(f"{local} = state.{name}")
        if isinstance(part, Function):
            lines += [f"{local}_get = {local}.get", f"{local}_default = {local}.default"]
        else:
            lines += [f"{local}__of = {local}._of", f"{local}_of = {local}__of.get"]
            lines += [f"{local}__at = {local}._at", f"{local}_at = {local}__at.get"]
    for name in ACTIONS:
        lines += function(name, unordered=unordered)
    taken, counted = (", ".join(map(told.format, ACTIONS)) for told in ("{0!r}: {0}", "count_{}"))
    lines.append(f"return {{{taken}}}, lambda: ({counted})")
    return "\n".join(["def bound(state, refuse):", *indented(lines)])


@cache
def program(unordered: bool) -> CodeType:
    return compile(source(unordered=unordered), "<compiled actions>", "exec")
