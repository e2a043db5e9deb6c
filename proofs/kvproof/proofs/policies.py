"""The policies of spec/, for all sizes: each promise is a predicate of Python over what their functions return."""
# ruff: noqa: B023 (a promise is made before the loop around it goes on)

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from kvproof.proofs.obligations import Obligation
from kvproof.proofs.paths import BOOL, INT, Dropped, Sizes, arithmetic
from kvproof.spec import chunks, geometry, lookup
from kvproof.spec import demand as needs
from kvproof.spec.demand import Ask
from kvproof.spec.geometry import Geometry, Group, Kind
from kvproof.spec.records import Config

GRAINS = ((True, "fine"), (False, "coarse"))


def policies() -> Iterator[Obligation]:
    return chain([arithmetic()], chunk_stops(), configured_chunks(), demands(), longest_hits(), common_hits())


def on_grid(at: Any, size: Any) -> Any:
    return at // size * size == at


def chunk_stops() -> list[Obligation]:
    """Chunks of a request, where the unit divides the block. They may come in any order."""
    s = Sizes(unit=2, ratio=3, start=6)
    unit, ratio, widest, prompt, length, junction = s.numbers("unit ratio widest prompt length junction")
    start, wanted, at, one, two = s.numbers("start wanted at one two")
    checkpoint, exact, block = s.flag("checkpoint"), s.flag("exact"), ratio * unit
    s.assume("sizes", lambda: unit >= 1 and ratio >= 1 and widest >= 1 and 1 <= prompt <= length)
    s.assume("a chunk", lambda: start >= 0 and 0 <= wanted <= widest and start + wanted <= length)
    with s.running(chunks):
        end, last = chunks.prefill_end(prompt, length), (length - 1) // block * block
        last_unit, marked = chunks.tail(prompt, unit), chunks.junction_stop(junction, prompt, block, exact)
        sizes = {"block": block, "unit": unit, "widest": widest, "junction": junction, "checkpoint": checkpoint}
        got = chunks.chunk(start, wanted, prompt, length, **sizes)
        stop, ahead = start + got, start + wanted
        position = chunks.checkpoint_position(start, stop, prompt, length, block=block, unit=unit)
        exported = s.merged(lambda: checkpoint and position > 0)
        enough = s.merged(lambda: wanted >= 1 and (wanted >= block or wanted >= widest or ahead >= end))
        short = s.merged(lambda: got >= 1 and stop < end and block <= widest)
        plain = s.merged(lambda: start < end and not exported)

        def allowed(at: Any) -> Any:
            return on_grid(at, block) or (at == last_unit and last_unit > last) or at == junction

        def two_in_one_block() -> Any:
            beside = not (on_grid(one, block) or on_grid(two, block))
            return allowed(one) and allowed(two) and one != two and one // block == two // block and beside

        @s.promise()
        def chunk_budget() -> Any:
            """A chunk takes from 0 to `wanted` tokens."""
            return 0 <= got <= wanted

        @s.promise()
        def chunk_progress() -> Any:
            """A chunk that may take a block, as much as the widest step, or the rest of the prefill takes a token or more."""
            return got >= 1 or not enough

        @s.promise()
        def chunk_waits() -> Any:
            """A chunk takes nothing exactly where it may take nothing, or where it reaches neither a position on the grid nor
            the end of the prefill, and a block fits into a step."""
            return (got == 0) == (wanted == 0 or (ahead < end and ahead // block * block <= start and block <= widest))

        @s.promise(lambda: start < length and enough)
        def chunk_cover() -> Any:
            """What is left to compute shrinks with each chunk that may take a block, and to no less than nothing: such chunks
            add up to the text."""
            return 0 <= length - stop < length - start

        @s.promise(lambda: short)
        def chunk_end() -> Any:
            """A chunk that stops short of the end of the prefill does so on the grid, at the junction, or at a tail that the
            text has not outgrown, where a block fits into a step."""
            return allowed(stop)

        @s.promise(two_in_one_block)
        def chunk_once_per_block() -> Any:
            """Of the stops short of the end of the prefill there is at most one off the grid in each block, unless the tail and
            the junction share it."""
            return (one == last_unit and two == junction) or (one == junction and two == last_unit)

        @s.promise(lambda: short and on_grid(junction, unit))
        def chunk_key() -> Any:
            """A stop short of the end of the prefill is a unit boundary where the junction is one: a state kept there has a
            key."""
            return on_grid(stop, unit)

        @s.promise()
        def chunk_junction() -> Any:
            """No chunk of the prefill runs past the junction."""
            return start >= end or not start < junction < stop

        @s.promise(lambda: plain)
        def chunk_stops() -> Any:
            """A chunk of the prefill that exports nothing runs past neither the last block nor a tail that is not outgrown."""
            return not start < last < stop and not (last_unit > last and start < last_unit < stop)

        @s.promise(lambda: plain and (not on_grid(start, block) or widest < block))
        def chunk_realign() -> Any:
            """A chunk of the prefill that exports nothing runs past no position on the grid, if it starts inside a block or no
            step is as wide as a block."""
            return not start < at // block * block < stop

        @s.promise(lambda: exported)
        def checkpoint_position() -> Any:
            """An exported state is at a unit boundary inside its chunk, which ends the prefill, and leaves a token of it; its
            slot, the last but one, is not that of the state before."""
            inside = start < position < end <= stop and on_grid(position, unit)
            return inside and -(-start // block) - 1 < -(-stop // block) - 2

        @s.promise()
        def tail() -> Any:
            """The tail is a unit boundary and leaves from one token to a unit of the prompt."""
            return on_grid(last_unit, unit) and last_unit >= 0 and 1 <= prompt - last_unit <= unit

        @s.promise()
        def junction_stop() -> Any:
            """The stop for a junction is less than a block before it, on the grid; for an exact one in the prompt it is at the
            junction."""
            there = marked == junction if exact and junction <= prompt else on_grid(marked, block)
            return 0 <= junction - marked < block and there

    return s.promises


def hybrid(s: Sizes, states: int, fine: bool) -> tuple[Geometry, Any]:
    """Any geometry of an attention group and some state groups, and the grain of its hits: fine where the block of a state
    group, here of the first, is longer than the unit, else coarse."""
    unit, *ratios = s.numbers("unit attention first second third")[: states + 2]
    sizes = [ratio * unit for ratio in (ratios if fine else ratios[:1])] + [unit] * (0 if fine else states)
    s.assume("sizes", lambda: unit >= 1 and all(size >= unit for size in sizes) and (not fine or sizes[1] > unit))
    kinds, checkpoints = [Kind.APPEND_ONLY] + [Kind.STATE] * states, [s.flag(f"checkpoint{n}") for n in range(states + 1)]
    shape = Geometry(tuple(map(Group, range(states + 1), kinds, sizes, checkpoints)), unit, 2)
    return shape, unit if fine else shape.scheduler_block


def configured_chunks(states: int = 2) -> Iterator[Obligation]:
    """What `next_chunk` asks of `chunk`, for an attention group and two state groups."""
    for fine, kind in GRAINS:
        s = Sizes(unit=2, attention=2, first=3, second=1)
        start, wanted, prompt, length, junction, budget = s.numbers("start wanted prompt length junction budget")
        with s.running(chunks, geometry):
            shape, grain = hybrid(s, states, fine)
            config = Config(shape, max_batched_tokens=budget, junctions=s.flag("exact"))

            def meets(*_: Any, block: Any, unit: Any, widest: Any, **more: Any) -> Any:
                ends = all(on_grid(block, group.block_size) for group in shape.states)
                return ends and on_grid(block, unit) and unit == grain and widest == budget and block >= unit

            with s.running(chunks, chunk=meets):

                @s.promise(kind=kind)
                def next_chunk() -> Any:
                    """A chunk of a hybrid model with {kind} hits is asked for with a block that ends one of every state group,
                    and with the grain of hits as the unit, which divides it: so it keeps the promises of chunks."""
                    return chunks.next_chunk(config, start, wanted, prompt, length, junction)

        yield from s.promises


def acquired(ask: Ask) -> int:
    """Blocks that an allocation takes, by slots: those that must be the request's own and are not, which begin at `held`.

    Its own must be each slot that it writes, of a state group the last one and that of an exported state before it; and the
    slot that it goes on from after a hit inside a block, which it gets a copy of.
    """
    size = ask.group.block_size
    first, last = ask.start // size, (ask.stop - 1) // size
    if ask.group.kind is Kind.APPEND_ONLY:
        own = max(last + 1 - max(first, ask.held), 0)
    else:
        exported = last - ask.checkpoint
        own = (last >= ask.held) + (exported < last and exported >= ask.held) + (ask.partial and first < exported)
    return own + ask.snapshot + ask.unheld


def usual(ask: Ask) -> bool:
    """What an engine asks: hits fill the slots before `start` of a new request, its table does for a running one, and only a
    chunk that reaches into two more slots exports a state."""
    slots = ask.group.blocks_for(ask.start)
    filled = ask.hits == slots if ask.held == 0 else ask.held >= slots and ask.hits == 0
    return 0 <= ask.unheld <= ask.hits and filled and (not ask.checkpoint or ask.group.blocks_for(ask.stop) >= slots + 2)


def demands() -> list[Obligation]:
    """Allocations for one group of each kind, and for three groups at once. Only states are snapshot or exported."""
    s = Sizes(size0=4, size1=8, size2=4, start=6, stop=30)
    start, stop, free, *sizes = s.numbers("start stop free size0 size1 size2")
    s.assume("sizes", lambda: all(size >= 1 for size in sizes) and start >= 0 and start < stop)
    asks = []
    with s.running(needs):
        for n, size in enumerate(sizes):
            held, hits, unheld = s.numbers(f"held{n} hits{n} unheld{n}")
            extras = [s.flag(f"snapshot{n}"), s.flag(f"export{n}")] if n else [False, False]
            group = Group(n, Kind.STATE if n else Kind.APPEND_ONLY, size)
            asks.append(Ask(group, held, start, stop, hits, unheld, *extras))
        takes, sane = ([s.merged(partial(rule, ask)) for ask in asks] for rule in (acquired, usual))
        for n in (0, 1):

            @s.promise(lambda: sane[n], kind=asks[n].group.kind)
            def demand() -> Any:
                """The demand of a group is the number of blocks that its allocation takes."""
                return needs.demand(asks[n]) == takes[n]

        @s.promise(lambda: all(sane) and needs.total_demand(asks) <= free)
        def total_demand() -> Any:
            """An allocation over an attention group and two state groups whose demand is met takes no block that is not
            free."""
            return free - sum(takes) >= 0

    return s.promises


@dataclass(frozen=True)
class Text:
    """A text of any length, and its prefixes: a key is the index of a group and the length of a prefix."""

    extent: Any

    def __getitem__(self, length: Any) -> Text:
        return Text(length)

    def key(self, group: Group) -> Any:
        return group.index, self.extent


def findable(s: Sizes, groups: int) -> Any:
    """Any set of keys that can be found."""
    found = [s.declared(f"keyed{n}", INT, BOOL) for n in range(groups)]
    return lambda key: s.symbol(found[key[0]](s.symbol(key[1]).term))


def longest_hits() -> list[Obligation]:
    """The hits of one group, whatever can be found and however long the searches are."""
    s = Sizes(unit=2, ratio=3, limit=20)
    unit, ratio, limit, n, found = s.numbers("unit ratio limit n found")
    size, keyed = ratio * unit, findable(s, 2)
    text: Any = Text(limit)
    s.assume("sizes", lambda: unit >= 1 and ratio >= 1 and limit >= 0)
    group, other = Group(0, Kind.APPEND_ONLY, size), Group(1, Kind.STATE, size)

    def boundary(at: Any) -> Any:
        return 0 <= at <= limit and on_grid(at, unit)

    with s.running(lookup):
        s.shown = n
        longest: Any = lookup.longest_append_only(keyed, text, group, unit, limit)
        state: Any = lookup.longest_state(keyed, text, other, unit, limit)

        @s.promise()
        def attention_hit() -> Any:
            """The longest hit of an attention group ends at a unit boundary. Its full blocks are found, and its end if that is
            inside a block: so each shorter one is covered, too."""
            end = boundary(longest) and (on_grid(longest, size) or keyed((0, longest)))
            return end and (keyed((0, n)) or not (0 < n <= longest and on_grid(n, size)))

        @s.promise()
        def state_hit() -> Any:
            """The longest hit of a state group is the greatest unit boundary that is found, or 0."""
            return boundary(state) and (state == 0 or keyed((1, state))) and not (n > state and boundary(n) and keyed((1, n)))

        s.shown = found
        run: Any = lookup.full_run(keyed, text, group, limit)
        greatest: Any = lookup.longest_append_only(keyed, text, group, unit, limit)

        def covered() -> Any:
            end = 0 < n <= found and boundary(n) and boundary(found) and (found - 1) // size == (n - 1) // size
            return end and keyed((0, found)) and (run + size > n or keyed((0, run + size)))

        @s.promise(covered)
        def attention_hit_is_greatest() -> Any:
            """An attention group covers no length beyond its longest hit: that would need the full block after it, or a
            boundary that is found between that length and the end of its block."""
            return n <= greatest

    return s.promises


class Again(Exception):
    """The rounds of `common_hit` go on."""


def common_hits(states: int = 2) -> Iterator[Obligation]:
    """One round of `common_hit` from any candidate. The rounds go on from a smaller one as they began, so by induction what
    is shown for a round is true of all: the attention hit, which only bounds the first candidate, may be any number here."""
    for fine, kind in GRAINS:
        s = Sizes(unit=2, attention=2, first=3, second=1, size=20)
        size, n, end, later = s.numbers("size n end later")
        s.assume("a text", lambda: size >= 0 and end >= 0)
        with s.running(lookup, geometry):
            one_round(s, kind, *hybrid(s, states, fine), size, n, end, later)
        yield from s.promises


def one_round(s: Sizes, kind: str, shape: Geometry, grain: Any, size: Any, n: Any, end: Any, later: Any) -> None:
    keyed, s.shown, search, skip = findable(s, len(shape.groups)), n, lookup.longest_state, False
    candidates, text = list[Any](), Text(size)

    def rounds(keyed: Any, path: Any, group: Group, grain: Any, limit: Any) -> Any:
        candidates.append(limit)
        if len(candidates) <= len(shape.states):
            return search(keyed, path, group, grain, limit)
        if not skip:
            raise Again
        if len(candidates) == len(shape.states) + 1 and not s.every(later >= 0, later <= limit, on_grid(later, grain)):
            raise Dropped
        return later

    def hit(last: Any, another: Any) -> Any:
        candidates.clear()
        try:
            found: Any = lookup.common_hit(keyed, text, shape, size)  # type: ignore[arg-type]
        except Again:
            return another(candidates[0], candidates[-1])
        return bool(candidates) and last(candidates[0], found.length, found.junction)

    def covered(length: Any) -> Any:
        return s.every(*(keyed((group.index, length)) for group in shape.states))

    with s.running(lookup, longest_state=rounds, longest_append_only=lambda *_: end, full_run=lambda *_: end):

        @s.promise(lambda: s.every(n >= 0, on_grid(n, grain), covered(n)), kind)
        def common_hit() -> Any:
            """With {kind} hits, the last round of `common_hit` ends at a length that every state group covers, another at a
            smaller candidate, and none passes a length within the candidate that all of them cover."""
            return hit(
                lambda first, length, _: (length == 0 or covered(length)) and (n <= length or n > first),
                lambda first, then: 0 <= then < first and on_grid(then, grain) and (n <= then or n > first),
            )

        def bounded(first: Any, length: Any, junction: Any) -> Any:
            inside = (length <= size - 1 or length == 0) and 0 <= length <= end and on_grid(length, grain)
            if length >= first:
                return inside and junction == 0 and length == first
            return inside and junction == first <= end and on_grid(first, grain)

        skip = True  # to the last of the rounds, which ends at some smaller candidate

        @s.promise(kind=kind)
        def common_hit_bounds() -> Any:
            """A hit leaves a token to compute and is a multiple of the grain. So is the junction, which is the first candidate
            and at most the attention hit, where that is beyond the hit; else there is none."""
            return hit(bounded, lambda first, then: False)
