"""What ends does end, and when: bounds, as theorems over the rules. Nothing is assumed but that issued steps are completed.

`fences`: how long a fence lasts. `leaks`: what is left when everybody is gone. `gains`: what a preemption gives back now.
`queue`: what a list of fences that is emptied from its front adds to all that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import z3

from kvproof.proofs.face import Expr, SomeState, arguments, installed, taken
from kvproof.proofs.obligations import Kernel, Obligation, Tables, asserted, declared, refutation, theorem, witness
from kvproof.spec.actions import ACTIONS
from kvproof.spec.clauses import CLAUSES
from kvproof.spec.logic import none


class Anywhere:
    """A state where all clauses hold, and a holder of a block in it."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.world, self.state = kernel, kernel.world, kernel.anywhere()
        self.holder, self.block = self.world.constant("holder", "Holder"), self.world.constant("block", "Block")
        self.used, self.horizon = self.state.last_use[self.block], self.of(lambda state: state.horizon)
        self.fenced, self.fence = self.state.fenced[self.holder], self.state.fence[self.holder]
        self.issued, self.completed = self.state.issued, self.state.completed
        self.held = {"it is held": self.state.holds[self.holder, self.block]}

    def of(self, term: Any) -> Expr:
        with installed(self.world):
            return term(self.state)

    def is_free(self, state: SomeState) -> Expr:
        return state.free(self.block)

    def may(self, name: str, *values: Expr) -> Expr:
        """That an action may happen. It is taken."""
        return z3.And(list(taken(self.world, ACTIONS[name], self.state, list(values)).values()))

    def says(self, name: tuple[str, ...], sentence: str, goal: Expr, **more: Expr) -> Obligation:
        return Obligation("liveness", name, sentence, refutation(declared(self.world), self.premises(more), goal))

    def shows(self, name: tuple[str, ...], sentence: str, **more: Expr) -> Obligation:
        text = "\n".join([declared(self.world), self.premises(more), "(check-sat)"])
        return Obligation("liveness", name, sentence, text, "sat")

    def premises(self, more: dict[str, Expr]) -> str:
        return "\n".join([self.kernel.assumed, asserted(self.held | more)])


def fences() -> Iterator[Obligation]:
    """A fence is at most one step beyond those in flight, no action moves it, each completion brings it nearer by one, and
    once its step is done it may end. So it lasts for as many completions as steps are in flight, and one more if its step is
    still being staged."""
    kernel = Kernel(Tables(ACTIONS, CLAUSES))
    for action in ACTIONS.values():
        at = Anywhere(kernel)
        guards = taken(at.world, action, at.state, arguments(at.world, action))
        same = z3.And(at.state.fenced[at.holder], at.state.fence[at.holder] == at.fence)
        onward = z3.And(at.state.issued >= at.issued, at.state.completed >= at.completed)
        goal = z3.And(onward, z3.Or(z3.Not(at.state.holds[at.holder, at.block]), same))
        yield at.says(("a fence stays", action.name), "No action moves a fence.", goal, **guards, fenced=at.fenced)
    at = Anywhere(kernel)
    bound = at.issued - at.completed + z3.If(at.fence == at.state.staging, 1, 0)
    sentence = "A fence waits for as many completions as there are steps in flight, and one more if its step is being staged."
    yield at.says(("the bound",), sentence, at.fence - at.completed <= bound, fenced=at.fenced)
    done = at.fence <= at.completed
    goal = at.may("expire", at.holder, at.block)
    yield at.says(("a fence ends",), "A fence whose step is done may end.", goal, fenced=at.fenced, done=done)
    at = Anywhere(kernel)
    goal = z3.And(at.may("complete"), at.state.completed == at.completed + 1)
    sentence = "Where a step is in flight, one may complete, and one less is in flight."
    yield at.says(("a step completes",), sentence, goal, flying=at.completed < at.issued)


def leaks() -> Iterator[Obligation]:
    """Where nobody is alive, all steps are done and nothing waits for the step that is being staged, every holder may end at
    once; in any order, since the end of one moves no other fence. What nobody holds is free, by the definition of free."""
    kernel = Kernel(Tables(ACTIONS, CLAUSES))
    at = Anywhere(kernel)
    gone = at.world.every("Owner", lambda owner: z3.Not(at.state.alive[owner]))
    over, staged = at.completed == at.issued, at.fence == at.state.staging
    yield at.shows(
        ("a copy is left",),
        "Everybody is gone and all steps are done, and a copy that was staged waits for its step.",
        gone=gone,
        over=over,
        staged=staged,
    )
    loads = at.of(lambda state: none(state.loading.of(at.holder)))
    yield at.says(("no load is left",), "Where nobody is alive, nothing loads.", loads, gone=gone)
    goal = at.may("expire", at.holder, at.block)
    sentence = "Where nobody is alive, all steps are done and nothing is staged, every holder may end."
    yield at.says(("no leak",), sentence, goal, gone=gone, over=over, idle=z3.Not(staged))


def gains() -> Iterator[Obligation]:
    """A block used beyond the horizon is not free after any way of letting it go; one that is not, is, where its holder is
    the only one. So a preemption gives a block back now exactly where the victim holds one alone and behind the horizon. The
    rules allow others, and then nothing is free before a step completes: whom to choose is a policy, watched by a check."""
    kernel = Kernel(Tables(ACTIONS, CLAUSES))
    for name in ("release", "defer", "expire"):
        at = Anywhere(kernel)
        passed = at.may(name, at.holder, at.block, *[at.world.constant("until", "int")] * (name == "defer"))
        sentence, goal = f"`{name}` frees no block that is used beyond the horizon.", z3.Not(at.of(at.is_free))
        yield at.says(("nothing now", name), sentence, goal, passed=passed, used=at.used > at.horizon)
    at = Anywhere(kernel)
    alone = at.world.every("Holder", lambda h: z3.Or(h == at.holder, z3.Not(at.state.holds[h, at.block])))
    mine = z3.And(alone, z3.Not(at.fenced), z3.Not(at.state.loading[at.holder, at.block]))
    stuck = {"mine": mine, "used": at.used > at.horizon}
    yield at.shows(
        ("a victim that gives nothing",), "All that a victim holds is in use, so that it gives nothing back now.", **stuck
    )
    device = z3.And(z3.Not(at.state.unordered), at.used <= at.issued)
    goal = z3.And(at.may("release", at.holder, at.block), at.of(at.is_free))
    sentence = "The only holder of a block behind the horizon frees it by its release."
    yield at.says(("something now",), sentence, goal, mine=mine, behind=at.used <= at.horizon)
    sentence = "Where the device's order protects, the only holder of a block that the staged step does not use frees it, too."
    yield at.says(("something now", "device order"), sentence, goal, mine=mine, device=device)


def queue() -> Iterator[Obligation]:
    """Fences in a list, emptied from its front up to the first one not reached, as vLLM's scheduler does. They are put there
    as of the newest issued step, or of the next one (endpoints of copies). So none is more than one ahead of a later one, and
    each ends with its step or with the one after. That one need not be issued, and nothing in the list makes it so."""
    i, j, new, size, issued, completed = z3.Ints("i j new size issued completed")
    fence = z3.Function("fence", z3.IntSort(), z3.IntSort())
    near = z3.ForAll([i, j], z3.Implies(z3.And(i < j, j < size), fence(i) <= fence(j) + 1))
    exist = z3.ForAll([i], z3.Implies(i < size, fence(i) <= issued + 1))
    put = {"near": near, "exist": exist, "put": z3.Or(new == issued, new == issued + 1)}
    goal = z3.And(z3.Implies(i < size, fence(i) <= new + 1), new <= issued + 1)
    sentence = "In a list of fences as vLLM keeps it, each is at most one ahead of a later one."
    yield theorem("liveness", ("queue", "nearly in order"), sentence, put, goal)
    entry = {"near": near, "entry": z3.And(i <= j, j < size), "next": completed >= fence(j) + 1}
    sentence = "An entry of such a list ends with the step after its own at the latest, as nothing before it waits longer."
    yield theorem("liveness", ("queue", "late by one"), sentence, entry, fence(i) <= completed)
    late = {"near": near, "exist": exist, "size": z3.And(i == 0, j == 1, size == 2), "over": completed == issued}
    late |= {"own step is done": fence(j) <= completed, "behind": fence(i) > completed}
    sentence = "All issued steps are done, and an entry of such a list waits for one that is not issued (F14)."
    yield witness("liveness", ("queue", "late"), sentence, late)


def liveness() -> Iterator[Obligation]:
    for family in (fences, leaks, gains, queue):
        yield from family()
