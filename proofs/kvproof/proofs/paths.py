"""The integer face: the policies of spec/, run on integers of any size.

A policy is plain Python on plain integers, so it runs on a `Symbol` as well, which is a term of z3. Where it asks for a truth
value the run parts, every answer that can be is followed, and `Sizes.merged` puts the results together as one term.

Products of two symbols are no linear arithmetic. Here `x * d` is a constant of which only this is said, for d >= 1 and the
products that a run names: equal x give equal products, neighbours products that are d apart, and a difference of two or more
products at least 2 * d apart. `x // d` is the q with q * d <= x < q * d + d. `arithmetic` proves that all of it is true, so
what follows from it is true of all integers.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import combinations, count
from operator import add, eq, ge, gt, le, lt, ne, sub
from types import ModuleType
from typing import Any
from unittest.mock import patch

import z3

from kvproof.proofs.face import Expr
from kvproof.proofs.obligations import Obligation

INT, BOOL = z3.IntSort(), z3.BoolSort()
TIMES, FLOOR, CEILING = (z3.Function(name, INT, INT, INT) for name in ("times", "floor", "ceiling"))
ONE = z3.IntVal(1)
FACTS = """
(define-fun apart ((x Int) (p Int) (y Int) (q Int) (d Int)) Bool (=> (>= d 1) (or (and (= x y) (= p q))
  (and (= x (+ y 1)) (= p (+ q d))) (and (= y (+ x 1)) (= q (+ p d)))
  (and (> x (+ y 1)) (>= p (+ q d d))) (and (> y (+ x 1)) (>= q (+ p d d))))))
(define-fun within ((p Int) (x Int) (d Int)) Bool (=> (>= d 1) (and (<= p x) (< x (+ p d)))))"""
MEANINGS = """
(define-fun times ((x Int) (d Int)) Int (* x d))
(define-fun floor ((x Int) (d Int)) Int (div x d))
(define-fun ceiling ((x Int) (d Int)) Int (- (div (- x) d)))"""


def arithmetic() -> Obligation:
    facts = "(apart x (times x d) y (times y d) d) (within (times (floor x d) d) x d)"
    ceiling = "(within (+ (- (times (ceiling x d) d) d) 1) x d)"
    symbols = "(declare-const x Int) (declare-const y Int) (declare-const d Int)"
    smt = f"{MEANINGS}{FACTS}\n{symbols}\n(assert (not (and {facts} {ceiling})))\n(check-sat)"
    return Obligation("policy", ("arithmetic",), "What the other proofs assume of products and quotients is true.", smt)


class Dropped(Exception):
    """On a path that no run takes, or that another theorem is about."""


class Symbol:
    """A number or a truth value, under Python's operators. What is made the same way is the same object."""

    def __init__(self, sizes: Sizes, term: Expr) -> None:
        self.sizes, self.term = sizes, term

    def made(self, build: Callable[[Expr, Expr], Expr], other: Any) -> Any:
        known, key = self.sizes.known, (build, id(self), id(other) if isinstance(other, Symbol) else (other,))
        if key not in known:
            known[key] = self.sizes.symbol(build(number_of(self), number_of(other)))
        return known[key]

    def __bool__(self) -> bool:
        return self.sizes.decided(self) if z3.is_bool(self.term) else bool(self.made(ne, 0))

    def __neg__(self) -> Any:
        return self.sizes.symbol(self.term.arg(0) if is_minus(self.term) else -self.term)

    def __radd__(self, other: Any) -> Any:
        return self.made(add, other)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mod__(self, divisor: Any) -> Any:
        floor = self // divisor * divisor
        return 0 if floor is self else self.made(sub, floor)

    def __mul__(self, divisor: Any) -> Any:
        return self.made(self.sizes.product, divisor)

    def __floordiv__(self, divisor: Any) -> Any:
        return self.made(self.sizes.quotient, divisor)


for _build in (add, sub, eq, ne, lt, le, gt, ge):
    setattr(Symbol, f"__{_build.__name__}__", lambda self, other, build=_build: self.made(build, other))


def number_of(value: Any) -> Expr:
    """The term of an integer. True counts as 1."""
    if not isinstance(value, Symbol):
        return z3.IntVal(int(value))
    return z3.If(value.term, ONE, z3.IntVal(0)) if z3.is_bool(value.term) else value.term


def is_minus(term: Expr) -> bool:
    return bool(z3.is_app_of(term, z3.Z3_OP_UMINUS))


def names_in(text: str) -> set[str]:
    return set(re.findall(r"[\w!.]+", text))


Trail = list[tuple[Symbol, bool, bool]]  # what a path was asked, its answer, whether the other one is left to follow


class Sizes:
    """Symbols, what is assumed of them, and the runs of functions on them.

    sample: values of some symbols, with which a solver finds those of the others when it is asked for a witness.
    shown: see `Span`.
    """

    def __init__(self, **sample: int) -> None:
        self.sample, self.shown = sample, None
        self.known: dict[Any, Any] = {}
        self.kept: list[Any] = []  # so that an id stays that of one object
        self.declarations: dict[str, Expr] = {}
        self.definitions: dict[str, list[str]] = {}
        self.meanings: dict[str, str] = {}  # of products and quotients; for witnesses
        self.premises: dict[str, Expr] = {}
        self.promises: list[Obligation] = []
        self.products: dict[Expr, dict[Expr, Expr]] = {}  # by divisor and quotient
        self.factors: dict[Expr, list[tuple[Expr, Expr]]] = {}
        self.solver = z3.SimpleSolver()
        self.script, self.trail, self.dropped = Trail(), Trail(), list[Expr]()
        self.births: Iterator[str] | None = None
        self.runs = count()
        self.words = {"min": partial(self.best, le), "max": partial(self.best, ge), "lcm": self.multiple}
        self.words |= {"range": partial(Span, self), "len": lambda whole: whole.extent}

    def symbol(self, value: Any) -> Any:
        if isinstance(value, Symbol):
            return value
        if isinstance(value, int):
            value = z3.BoolVal(value) if isinstance(value, bool) else z3.IntVal(value)
        term = z3.simplify(value) if z3.is_bool(value) else value
        return self.known.setdefault(term.get_id(), Symbol(self, term))

    def declared(self, name: str, *sorts: Expr) -> Expr:
        return self.declarations.setdefault(name, z3.Function(name, *sorts))

    def numbers(self, names: str) -> list[Any]:
        return [self.symbol(self.declared(name, INT)()) for name in names.split()]

    def flag(self, name: str) -> Any:
        return self.symbol(self.declared(name, BOOL)())

    def named(self, kind: str, term: Expr) -> Expr:
        """A constant for a term, so that texts stay short."""
        name = f"{kind}!{len(self.definitions)}"
        self.meanings[name] = f"(= {name} {term.sexpr()})"
        self.definitions[name] = [] if kind in ("times", "floor", "ceiling") else [self.meanings[name]]
        return self.declared(name, term.sort())()

    def product(self, x: Expr, d: Expr) -> Expr:
        if z3.is_int_value(x) or z3.is_int_value(d):
            return z3.simplify(x * d)
        if is_minus(x):
            return -self.product(x.arg(0), d)
        x, others = z3.simplify(x), self.products.setdefault(d, {})
        if x not in others:
            made = others[x] = self.named("times", TIMES(x, d))
            self.factors[made] = [(x, d)]
            self.solver.add(z3.Implies(z3.And(d >= 1, x >= 1), made >= d))
            for first, second in self.factors.get(d, []):  # a multiple of a product is one of its right factor
                same = self.product(self.product(x, first), second)
                self.definitions[made.sexpr()].append(f"(= {made.sexpr()} {same.sexpr()})")
        return others[x]

    def quotient(self, x: Expr, d: Expr) -> Expr:
        for first, second in [(ONE, x), *self.factors.get(x, [])]:
            if second.eq(d):
                return first
        up = is_minus(x)
        x = x.arg(0) if up else x
        made = self.named("ceiling", CEILING(x, d)) if up else self.named("floor", FLOOR(x, d))
        least = self.product(made, d) - d + 1 if up else self.product(made, d)
        self.definitions[made.sexpr()].append(f"(within {least.sexpr()} {x.sexpr()} {d.sexpr()})")
        self.solver.add(z3.Implies(d >= 1, z3.And(least <= x, x < least + d)))
        return -made if up else made

    def multiple(self, first: Any, *others: Any) -> Any:
        """For `math.lcm`: some positive number that each of them divides."""
        key = ("lcm", *map(id, (first, *others)))
        if key not in self.known:
            made, *same = (self.numbers(f"factor!{len(self.known)}.{n}")[0] * x for n, x in enumerate((first, *others)))
            self.known[key] = made
            self.definitions[made.term.sexpr()] += [(made == other).term.sexpr() for other in same]
            self.factors[made.term] += [self.factors[other.term][0] for other in same]
            self.assume(f"lcm {len(self.known)}", lambda: made >= 1)
        return self.known[key]

    def every(self, *truths: Any) -> Any:
        return self.symbol(z3.And([truth.term for truth in truths]))

    def best(self, better: Callable[[Any, Any], Any], *values: Any) -> Any:
        best, *others = values if len(values) > 1 else values[0]
        for other in others:
            a, b = self.symbol(number_of(best)), self.symbol(number_of(other))
            best = self.symbol(z3.If(better(a, b).term, a.term, b.term))
        return best

    # ------------------------------------------------------------------------------------------------------------------ runs

    def possible(self, truth: Symbol, answer: bool) -> bool:
        """Whether the path may go on so. Most facts of products are left out: a path too many does no harm, and of one that is
        not followed the result is any (`_explored`)."""
        path = [*self.trail, (truth, answer, False)]
        return bool(self.solver.check(*(asked.term if given else z3.Not(asked.term) for asked, given, _ in path)) != z3.unsat)

    def decided(self, truth: Symbol) -> bool:
        if z3.is_true(truth.term) or z3.is_false(truth.term):
            return bool(z3.is_true(truth.term))
        at = len(self.trail)
        for asked, answer, _ in self.trail:
            if asked is truth:
                return answer
        if at < len(self.script):
            assert self.script[at][0] is truth, "a function must ask the same on the same path"
            self.trail.append(self.script[at])
        else:
            yes = self.possible(truth, True)
            no = not yes or self.possible(truth, False)
            if yes and no and self.births is None:
                raise TypeError(f"{truth.term} is open: ask inside a run")
            self.trail.append((truth, yes, yes and no))
        return self.trail[at][1]

    def merged(self, run: Callable[[], Any], dropped: list[Expr] | None = None) -> Any:
        """What a function returns over all paths, as one symbol. A dropped path promises nothing: `dropped` gets its denial."""
        outer = self.script, self.trail, self.births, self.dropped
        self.dropped = [] if dropped is None else dropped
        value = self._explored(run, [], next(self.runs))
        self.script, self.trail, self.births, self.dropped = outer
        return self.symbol(True) if value is None else value

    def _explored(self, run: Callable[[], Any], script: Trail, number: int) -> Any:
        self.script, self.trail, self.births = script, [], (f"{number}.{birth}" for birth in count())
        try:
            value = self.symbol(run())
        except Dropped:
            path = [asked.term if answer else z3.Not(asked.term) for asked, answer, _ in self.trail]
            value = None
            self.dropped.append(z3.Not(z3.And(path)))
        trail = self.trail
        for at in reversed(range(len(script), len(trail))):
            asked, answer, both = trail[at]
            if both:
                other = self._explored(run, [*trail[:at], (asked, not answer, False)], number)
            else:
                other = None if value is None else self.symbol(self.declared(f"any!{number}", value.term.sort())())
            value = self._choice(asked, *((value, other) if answer else (other, value)))
        return value

    def _choice(self, asked: Symbol, yes: Any, no: Any) -> Any:
        kept = no if yes is None else yes
        if kept is None or yes is no:
            return kept
        if z3.is_bool(kept.term):
            yes, no = (self.symbol(True) if value is None else value for value in (yes, no))
        return kept if yes is None or no is None else self.symbol(z3.If(asked.term, yes.term, no.term))

    def summary(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, each call merged by itself, so that its paths do not multiply those of its caller."""

        def call(*args: Any, **named: Any) -> Any:
            key = (function, id(self.shown), *((v,) if isinstance(v, int) else id(v) for v in (*args, *named.values())))
            if key not in self.known:
                self.kept += [*args, *named.values()]
                dropped: list[Expr] = []
                value = self.merged(lambda: function(*args, **named), dropped)
                if z3.is_app_of(value.term, z3.Z3_OP_ITE):
                    value = self.symbol(self.named(function.__name__, value.term))
                    self.definitions[value.term.sexpr()] += [path.sexpr() for path in dropped]
                self.known[key] = value
            return self.known[key]

        return call

    @contextmanager
    def running(self, *modules: ModuleType, **words: Any) -> Iterator[None]:
        """Inside, functions of the modules run on symbols: those that return an integer are merged call by call, and they
        find symbolic words where Python's own insist on its integers."""
        with ExitStack() as stack:
            for own in map(vars, modules):
                functions = {name: value for name, value in own.items() if inspect.isfunction(value)}
                numeric = [name for name, function in functions.items() if function.__annotations__.get("return") == "int"]
                merged = {name: self.summary(functions[name]) for name in numeric}
                stack.enter_context(patch.dict(own, merged | self.words | words))
            yield

    # ------------------------------------------------------------------------------------------------------------ obligations

    def assume(self, name: str, run: Callable[[], Any]) -> None:
        self.premises[name] = self.merged(run).term
        self.solver.add(self.premises[name])

    def promise(self, given: Callable[[], Any] = lambda: True, kind: str = "") -> Callable[[Callable[[], Any]], None]:
        """Makes a function without parameters a promise: a name, of `kind` if there are several; a sentence; what is true."""

        def promised(then: Callable[[], Any]) -> None:
            name = then.__name__.replace("_", " ") + (kind and f", {kind}")
            sentence = " ".join((then.__doc__ or "").split()).format(kind=kind)
            self.promises += self.obliged(name, sentence, then, given)

        return promised

    def obliged(self, name: str, sentence: str, then: Callable[[], Any], given: Callable[[], Any]) -> list[Obligation]:
        """That `then` is true wherever `given` is, and that this is somewhere."""
        holds = self.merged(given)
        goal = self.merged(lambda: then() if holds else True).term
        assumed = [*self.premises.values(), holds.term]
        used, declared, facts = self.used(*assumed, goal)
        for d, products in self.products.items():
            named = [("0", "0")] + [(x.sexpr(), p.sexpr()) for x, p in products.items() if p.sexpr() in used]
            facts += [f"(apart {x} {p} {y} {q} {d.sexpr()})" for (x, p), (y, q) in combinations(named, 2)]
        theorem = Obligation("policy", (name,), sentence, script(FACTS, declared, facts, *assumed, z3.Not(goal)))
        used, declared, facts = self.used(*assumed, *map(z3.Int, self.sample))
        facts += [self.meanings[name] for name in self.meanings if name in used]
        facts += [f"(= {symbol} {value})" for symbol, value in self.sample.items() if symbol in used]
        smt = script(MEANINGS + FACTS, declared, facts, *assumed)
        return [theorem, Obligation("witness", ("policy", name), f"There are such cases: {sentence}", smt, "sat")]

    def used(self, *terms: Expr) -> tuple[set[str], str, list[str]]:
        """The constants that terms speak of and those that their definitions need; their declarations and definitions."""
        found, new = set[str](), names_in(" ".join(term.sexpr() for term in terms))
        while new := new & self.declarations.keys() - found:
            found |= new
            lines = [line for name in new for line in [*self.definitions.get(name, []), self.meanings.get(name, "")]]
            new = names_in(" ".join(lines))
        declared = "\n".join(declaration.sexpr() for name, declaration in self.declarations.items() if name in found)
        return found, declared, [line for name in self.definitions if name in found for line in self.definitions[name]]


def script(words: str, declared: str, facts: list[str], *terms: Expr) -> str:
    """A text without names: a core would tell nothing, and what is not tracked is solved faster."""
    asserted = (f"(assert {said})" for said in [*facts, *(term.sexpr() for term in terms)])
    return "\n".join([words, declared, *asserted, "(check-sat)"])


class Span:
    """A `range` of symbols, gone through in search of the first element that passes a test.

    Of its elements a run shows the one where the search ends and, if it is an element at all, `Sizes.shown`, each in its
    place. Those that it leaves out fail the test, which must depend on nothing but the element.
    """

    def __init__(self, sizes: Sizes, start: Any, stop: Any, step: Any) -> None:
        self.sizes, self.start, self.stop, self.down = sizes, start, stop, is_minus(step.term)
        self.step = -step if self.down else step

    def has(self, n: Any, *more: Any) -> Any:
        inside = (self.start >= n, n > self.stop) if self.down else (self.start <= n, n < self.stop)
        return self.sizes.every(*inside, n % self.step == self.start % self.step, *more)

    def __iter__(self) -> Iterator[Any]:
        shown: Any = self.sizes.shown
        if shown is not None and self.has(shown):
            yield from self.end(lambda n: n > shown if self.down else n < shown)
            yield shown
            yield from self.end(lambda n: n < shown if self.down else n > shown)
        else:
            yield from self.end()

    def end(self, *place: Callable[[Any], Any]) -> Iterator[Any]:
        assert self.sizes.births is not None
        birth = next(self.sizes.births)
        (n,), here = self.sizes.numbers(f"end!{birth}"), self.sizes.flag(f"here!{birth}")
        if self.has(n, here, *(where(n) for where in place)):
            yield n
            raise Dropped
