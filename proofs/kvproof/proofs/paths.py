"""The integer face: the policies of spec/, run on integers of any size.

A policy is plain Python on plain integers, so it runs on a `Num` as well, which is a term of z3. Where it asks for a truth
value the run parts, every answer that can be is followed, and `Sizes.merged` puts the results together as one term.

Products of two symbols are no linear arithmetic. Here `x * d` is an application of a function of which only this is said, for
d >= 1 and the products that a run names: equal x give equal products, neighbours products that are d apart, and a
difference of two or more products at least 2 * d apart. `x // d` is the q with q * d <= x < q * d + d. All of it is true of
integers, so what follows from it is true of all of them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations, count
from operator import add, eq, ge, gt, le, lt, ne, sub
from types import ModuleType
from typing import Any

import z3

from kvproof.proofs.face import Expr
from kvproof.proofs.obligations import Obligation, asserted, theorem, witness

INT = z3.IntSort()
TIMES, FLOOR, CEILING = (z3.Function(name, INT, INT, INT) for name in ("times", "floor", "ceiling"))
# What the three are, for a witness. A theorem has the facts only.
DEFINED = {"times": "(* x d)", "floor": "(div x d)", "ceiling": "(- (div (- x) d))"}
DEFINED_TEXT = "\n".join(f"(define-fun {name} ((x Int) (d Int)) Int {meaning})" for name, meaning in DEFINED.items())
FACTS = """
(define-fun apart ((x Int) (p Int) (y Int) (q Int) (d Int)) Bool (=> (>= d 1) (or (and (= x y) (= p q))
  (and (= x (+ y 1)) (= p (+ q d))) (and (= y (+ x 1)) (= q (+ p d)))
  (and (> x (+ y 1)) (>= p (+ q d d))) (and (> y (+ x 1)) (>= q (+ p d d))))))
(define-fun within ((p Int) (x Int) (d Int)) Bool (=> (>= d 1) (and (<= p x) (< x (+ p d)))))"""
ZERO = z3.IntVal(0)
Asked = list[tuple["Truth", bool, bool]]  # what a path was asked, its answer, whether the other one is left to follow


class Dropped(Exception):
    """On a path that no run takes, or that another theorem is about."""


def is_minus(term: Expr) -> bool:
    return bool(z3.is_app_of(term, z3.Z3_OP_UMINUS))


class Symbol:
    """A term under Python's operators. What is made the same way is the same object."""

    __slots__ = ("sizes", "term")

    def __init__(self, sizes: Sizes, term: Expr) -> None:
        self.sizes, self.term = sizes, term

    def _made(self, build: Callable[[Expr, Expr], Expr], other: Any) -> Any:
        key = (build, id(self), id(other) if isinstance(other, Symbol) else (other,))
        known = self.sizes.known
        if key not in known:
            known[key] = self.sizes.symbol(build(number_of(self), number_of(other)))
        return known[key]

    def __add__(self, other: Any) -> Any:
        return self._made(add, other)

    __radd__ = __add__


class Truth(Symbol):
    """Asked which one it is, it answers with both, one path after the other. As a number it is 1 or 0."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return self.sizes.decided(self)


class Num(Symbol):
    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __sub__(self, other: Any) -> Any:
        return self._made(sub, other)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __neg__(self) -> Any:
        return self.sizes.symbol(self.term.arg(0) if is_minus(self.term) else -self.term)

    def __mul__(self, divisor: Any) -> Any:
        return self._made(self.sizes.product, divisor)

    def __floordiv__(self, divisor: Any) -> Any:
        return self._made(self.sizes.quotient, divisor)

    def __mod__(self, divisor: Any) -> Any:
        floor = self // divisor * divisor
        return 0 if floor is self else self - floor

    def __lt__(self, other: Any) -> Any:
        return self._made(lt, other)

    def __le__(self, other: Any) -> Any:
        return self._made(le, other)

    def __gt__(self, other: Any) -> Any:
        return self._made(gt, other)

    def __ge__(self, other: Any) -> Any:
        return self._made(ge, other)

    def __eq__(self, other: object) -> Any:
        return self._made(eq, other)

    def __ne__(self, other: object) -> Any:
        return self._made(ne, other)

    def __bool__(self) -> bool:
        return bool(self != 0)


def number_of(value: Any) -> Expr:
    if isinstance(value, Truth):
        return z3.If(value.term, z3.IntVal(1), ZERO)
    return value.term if isinstance(value, Num) else z3.IntVal(int(value))


class Sizes:
    """Symbols, what is assumed of them, and the runs of functions on them.

    sample: values of some symbols, with which a solver finds the others when it is asked for a witness.
    shown: see `Span`.
    """

    def __init__(self, **sample: int) -> None:
        self.sample, self.shown = sample, None
        self.known: dict[Any, Any] = {}
        self.dropped: list[Expr] = []
        self.kept: list[Any] = []  # so that an id stays that of one object
        self.declarations: dict[str, Expr] = {}
        self.premises: dict[str, Expr] = {}
        self.definitions: dict[str, list[str]] = {}
        self.meanings: dict[str, list[str]] = {}
        self.links: list[tuple[str, str, str]] = []
        self.products: dict[Expr, dict[Expr, Expr]] = {}
        self.factors: dict[Expr, list[tuple[Expr, Expr]]] = {}
        self.solver, self.levels = z3.SimpleSolver(), list[tuple[Truth, bool]]()
        self.births: Iterator[str] | None = None
        self.script, self.trail, self.runs = Asked(), Asked(), count()

    def symbol(self, term: Any) -> Any:
        """The symbol of a term, or of a value of Python."""
        if isinstance(term, Symbol):
            return term
        if isinstance(term, int):
            term = z3.BoolVal(term) if isinstance(term, bool) else z3.IntVal(term)
        term = z3.simplify(term) if z3.is_bool(term) else term
        kind = Truth if z3.is_bool(term) else Num
        return self.known.setdefault(term.get_id(), kind(self, term))

    def declared(self, name: str, *sorts: Expr) -> Expr:
        made = self.declarations[name] = z3.Function(name, *sorts)
        return made

    def numbers(self, names: str) -> list[Any]:
        return [self.symbol(self.declared(name, INT)()) for name in names.split()]

    def flag(self, name: str) -> Any:
        return self.symbol(self.declared(name, z3.BoolSort())())

    def fresh(self) -> tuple[Any, Any]:
        """A number and a truth value that nothing is known of."""
        assert self.births is not None
        birth = next(self.births)
        return self.numbers(f"number!{birth}")[0], self.flag(f"flag!{birth}")

    def always(self, fact: Expr) -> None:
        self.solver.pop(len(self.levels))
        self.levels = []
        self.solver.add(fact)

    def text(self, term: Expr) -> str:
        key = ("text", term.get_id())
        if key not in self.known:
            self.kept.append(term)
            self.known[key] = term.sexpr()
        return self.known[key]  # type: ignore[no-any-return]

    def named(self, kind: str, term: Expr) -> Expr:
        """A constant for a term, so that texts stay short. Products and quotients are defined for witnesses only."""
        made = self.declared(f"{kind}!{len(self.definitions)}", term.sort())()
        meant = self.meanings if kind in DEFINED else self.definitions
        self.definitions[self.text(made)] = []
        meant[self.text(made)] = [f"(= {self.text(made)} {term.sexpr()})"]
        return made

    def times(self, x: Expr, d: Expr) -> Expr:
        key = ("times", x.get_id(), d.get_id())
        if key not in self.known:
            self.kept += [x, d]
            self.known[key] = self.named("times", TIMES(x, d))
        return self.known[key]

    def product(self, x: Expr, d: Expr) -> Expr:
        if z3.is_int_value(x) or z3.is_int_value(d):
            return z3.simplify(x * d)
        if is_minus(x):
            return -self.product(x.arg(0), d)
        x, others = z3.simplify(x), self.products.setdefault(d, {})
        if x not in others:
            made = others[x] = self.times(x, d)
            self.factors[made] = [(x, d)]
            self.always(z3.Implies(z3.And(d >= 1, x >= 1), made >= d))
            for first, second in self.factors.get(d, []):  # a multiple of a product is one of its right factor
                link = self.named("link", self.product(self.times(x, first), second))
                self.links.append((self.text(made), self.text(second), f"(= {self.text(made)} {self.text(link)})"))
        return others[x]

    def quotient(self, x: Expr, d: Expr) -> Expr:
        for first, second in [(z3.IntVal(1), x), *self.factors.get(x, [])]:
            if second.eq(d):
                return first
        up = is_minus(x)
        x = x.arg(0) if up else x
        made = self.named("ceiling", CEILING(x, d)) if up else self.named("floor", FLOOR(x, d))
        least = self.product(made, d) - d + 1 if up else self.product(made, d)
        self.definitions[self.text(made)].append(f"(within {self.text(least)} {self.text(x)} {self.text(d)})")
        self.always(z3.Implies(d >= 1, z3.And(least <= x, x < least + d)))
        return -made if up else made

    def multiple(self, *sizes: Any) -> Any:
        """For `math.lcm`: some positive number that each of them divides."""
        key = ("lcm", *map(id, sizes))
        if key not in self.known:
            factors = self.numbers(" ".join(f"factor!{len(self.kept)}.{n}" for n in range(len(sizes))))
            made, *same = (factor * size for factor, size in zip(factors, sizes, strict=True))
            self.kept.append(sizes)
            self.known[key] = made
            self.definitions[self.text(made.term)] += [(made == other).term.sexpr() for other in same]
            self.factors[made.term] += [self.factors[other.term][0] for other in same]
            self.assume(f"lcm {len(self.kept)}", lambda: made >= 1)
        return self.known[key]

    # ------------------------------------------------------------------------------------------------------------------ runs

    def decided(self, truth: Truth) -> bool:
        if z3.is_true(truth.term) or z3.is_false(truth.term):
            return bool(z3.is_true(truth.term))
        for asked, answer, _ in self.trail:
            if asked is truth:
                return answer
        at = len(self.trail)
        if at < len(self.script):
            assert self.script[at][0] is truth, "a function must ask the same on the same path"
            self.trail.append(self.script[at])
        else:
            yes, no = self.possible(truth, True), self.possible(truth, False)
            if not (yes or no):
                raise Dropped
            if yes and no and self.births is None:
                raise TypeError(f"{truth.term} is open: ask inside a run")
            self.trail.append((truth, yes, yes and no))
        return self.trail[at][1]

    def possible(self, truth: Truth, answer: bool) -> bool:
        """Whether the path may go on so. Facts of products are left out: a path too many does no harm."""
        path = [(asked, given) for asked, given, _ in self.trail] + [(truth, answer)]
        same = next((at for at, (a, b) in enumerate(zip(self.levels, path, strict=False)) if a != b), len(self.levels))
        self.solver.pop(len(self.levels) - same)
        for asked, given in path[same:]:
            self.solver.push()
            self.solver.add(asked.term if given else z3.Not(asked.term))
        self.levels = path
        return bool(self.solver.check() != z3.unsat)

    def merged(self, run: Callable[[], Any]) -> Any:
        """What a function returns, over all its paths, as one symbol. A path that is dropped agrees with any."""
        return self._merged(run)[0]

    def _merged(self, run: Callable[[], Any]) -> tuple[Any, list[Expr]]:
        outer = self.script, self.trail, self.births, self.dropped
        self.dropped = []
        value, dropped = self._explored(run, [], next(self.runs)), self.dropped
        self.script, self.trail, self.births, self.dropped = outer
        return self.symbol(True) if value is None else value, dropped

    def _explored(self, run: Callable[[], Any], script: Asked, number: int) -> Any:
        self.script, self.trail, self.births = script, [], (f"{number}.{birth}" for birth in count())
        try:
            value = self.symbol(run())
        except Dropped:
            value = None
            path = [asked.term if answer else z3.Not(asked.term) for asked, answer, _ in self.trail]
            self.dropped.append(z3.Not(z3.And(path)))
        trail = self.trail
        for at in reversed(range(len(script), len(trail))):
            asked, answer, both = trail[at]
            if both:
                other = self._explored(run, [*trail[:at], (asked, not answer, False)], number)
                value = self.choice(asked, *((value, other) if answer else (other, value)))
        return value

    def choice(self, asked: Truth, yes: Any, no: Any) -> Any:
        if yes is None or no is None:
            kept = no if yes is None else yes
            if not isinstance(kept, Truth):
                return kept
            yes, no = (self.symbol(True) if value is None else value for value in (yes, no))
        return yes if yes is no else self.symbol(z3.If(asked.term, yes.term, no.term))

    def summary(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, each call merged by itself, so that its paths do not multiply those of its caller."""

        def call(*args: Any, **named: Any) -> Any:
            key = (function, id(self.shown), *((v,) if isinstance(v, int) else id(v) for v in (*args, *named.values())))
            if key not in self.known:
                self.kept += [*args, *named.values()]
                value, dropped = self._merged(lambda: function(*args, **named))
                if z3.is_app_of(value.term, z3.Z3_OP_ITE):
                    name = self.named(function.__name__, value.term)
                    self.definitions[self.text(name)] += [path.sexpr() for path in dropped]
                    value = self.symbol(name)
                self.known[key] = value
            return self.known[key]

        return call

    def every(self, *truths: Truth) -> Any:
        return self.symbol(z3.And([truth.term for truth in truths]))

    def least(self, *values: Any) -> Any:
        return self._best(le, *values)

    def greatest(self, *values: Any) -> Any:
        return self._best(ge, *values)

    def _best(self, better: Callable[[Any, Any], Any], *values: Any) -> Any:
        best, *others = values if len(values) > 1 else values[0]
        for value in others:
            kept, value = self.symbol(number_of(best)), self.symbol(number_of(value))
            best = self.choice(better(kept, value), kept, value)
        return best

    @contextmanager
    def running(self, *modules: ModuleType, **words: Any) -> Iterator[None]:
        """Inside, functions of the modules run on symbols: those that return a number are merged call by call, and they
        find symbolic words where Python's own insist on its integers."""
        usual = {
            "min": self.least,
            "max": self.greatest,
            "lcm": self.multiple,
            "range": self.span,
            "len": lambda whole: whole.extent,
        }
        before = []
        for module in modules:
            own = inspect.getmembers(module, inspect.isfunction)
            numeric = [name for name, value in own if inspect.get_annotations(value).get("return") == "int"]
            new = {name: self.summary(getattr(module, name)) for name in numeric} | usual | words
            before.append((vars(module), new, {name: vars(module)[name] for name in new if name in vars(module)}))
            vars(module).update(new)
        try:
            yield
        finally:
            for names, new, old in before:
                for name in new:
                    del names[name]
                names.update(old)

    def span(self, *bounds: Any) -> Span:
        return Span(self, *bounds)

    # ------------------------------------------------------------------------------------------------------------ obligations

    def assume(self, name: str, run: Callable[[], Any]) -> None:
        self.premises[name] = self.merged(run).term
        self.always(self.premises[name])

    def promise(
        self, name: str, sentence: str, then: Callable[[], Any], given: Callable[[], Any] = lambda: True
    ) -> Iterator[Obligation]:
        """That `then` is true wherever `given` is, and that this is somewhere."""
        holds = self.merged(given)
        goal = self.merged(lambda: then() if holds else True).term
        premises = self.premises | {"given": holds.term}
        text = asserted(premises)
        used = self.used(text + goal.sexpr())
        lines = [self.declarations[name].sexpr() for name in self.declarations if name in used]
        lines += [f"(assert {line})" for name in self.definitions if name in used for line in self.definitions[name]]
        lines += [f"(assert {line})" for *_, line in self.links if names_in(line) - {"="} <= used]
        for d, products in self.products.items():
            named = [("0", "0")] + [(self.text(x), self.text(p)) for x, p in products.items() if self.text(p) in used]
            lines += [f"(assert (apart {x} {p} {y} {q} {self.text(d)}))" for (x, p), (y, q) in combinations(named, 2)]
        yield theorem("policy", (name,), sentence, text, goal, "\n".join([FACTS, *lines]))
        used = self.used(text + " ".join(self.sample))
        lines = [self.declarations[name].sexpr() for name in self.declarations if name in used]
        for meant in (self.definitions, self.meanings):
            lines += [f"(assert {line})" for name in meant if name in used for line in meant[name]]
        sample = {f"let {symbol}": z3.Int(symbol) == value for symbol, value in self.sample.items() if symbol in used}
        sentence = f"There are cases for this: {sentence}"
        yield witness("witness", ("policy", name), sentence, premises | sample, "\n".join([DEFINED_TEXT, FACTS, *lines]))

    def used(self, text: str) -> set[str]:
        """The constants that a text speaks of, and those that their definitions need."""
        found, new = set[str](), names_in(text)
        while new := new & self.declarations.keys() - found:
            found |= new
            lines = [line for name in new for meant in (self.definitions, self.meanings) for line in meant.get(name, ())]
            divisors = {
                self.text(d) for d, products in self.products.items() if any(self.text(p) in found for p in products.values())
            }
            lines += [line for product, divisor, line in self.links if product in found and divisor in divisors]
            new = {word for line in lines for word in names_in(line)}
        return found


def names_in(text: str) -> set[str]:
    return set(re.findall(r"[\w!.]+", text))


def arithmetic() -> Obligation:
    """What is assumed of products and quotients."""
    facts = "(apart x (times x d) y (times y d) d) (within (times (floor x d) d) x d)"
    ceiling = "(within (+ (- (times (ceiling x d) d) d) 1) x d)"
    smt = f"{DEFINED_TEXT}{FACTS}\n(declare-const x Int) (declare-const y Int) (declare-const d Int)\n"
    smt += f"(assert (not (and {facts} {ceiling})))\n(check-sat)"
    sentence = (
        "Products of the same divisor are apart as their factors are, and a quotient is the one that it is defined to be."
    )
    return Obligation("policy", ("arithmetic",), sentence, smt)


class Span:
    """A `range` of symbols, gone through in search of the first element that passes a test.

    Of its elements a run shows the one where the search ends and, if it is an element at all, `Sizes.shown`, each in its
    place. Those that it leaves out fail the test, which must depend on nothing but the element.
    """

    def __init__(self, sizes: Sizes, start: Num, stop: Num, step: Num) -> None:
        self.sizes, self.start, self.stop = sizes, start, stop
        self.down = is_minus(step.term)
        self.step = -step if self.down else step

    def has(self, n: Num, *more: Truth) -> Truth:
        inside = [self.start >= n, n > self.stop] if self.down else [self.start <= n, n < self.stop]
        return self.sizes.every(*inside, n % self.step == self.start % self.step, *more)

    def __iter__(self) -> Iterator[Num]:
        shown = self.sizes.shown
        if shown is not None and self.has(shown):
            yield from self.end(lambda n: n > shown if self.down else n < shown)
            yield shown
            yield from self.end(lambda n: n < shown if self.down else n > shown)
        else:
            yield from self.end()

    def end(self, *place: Callable[[Num], Truth]) -> Iterator[Num]:
        n, here = self.sizes.fresh()
        if self.has(n, here, *(where(n) for where in place)):
            yield n
            raise Dropped
