"""The policies of spec/, for all sizes: each promise is a predicate of Python over what their functions return."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import z3

from kvproof.proofs.obligations import Obligation
from kvproof.proofs.paths import INT, Dropped, Sizes, arithmetic
from kvproof.spec import chunks, demand, geometry, hashing, lookup
from kvproof.spec.demand import Ask
from kvproof.spec.geometry import Geometry, Group, Kind
from kvproof.spec.records import Config


def policies() -> Iterator[Obligation]:
    return chain([arithmetic()], chunk_stops(), configured_chunks(), demands(), longest_hits(), common_hits(), views())


def chunk_stops() -> Iterator[Obligation]:
    """Chunks of a request, where the unit divides the block. They may come in any order."""
    s = Sizes(unit=2, ratio=3)
    unit, ratio, widest, prompt, length, junction = s.numbers("unit ratio widest prompt length junction")
    start, wanted, at = s.numbers("start wanted at")
    checkpoint, exact, block = s.flag("checkpoint"), s.flag("exact"), ratio * unit
    s.assume("sizes", lambda: unit >= 1 and ratio >= 1 and widest >= 1 and 1 <= prompt <= length)
    s.assume("a chunk", lambda: start >= 0 and 0 <= wanted <= widest and start + wanted <= length)
    with s.running(chunks):
        end, last = chunks.prefill_end(prompt, length), (length - 1) // block * block
        tail, marked = chunks.tail(prompt, unit), chunks.junction_stop(junction, prompt, block, exact)

        def taken(begin: Any, most: Any) -> Any:
            sizes = {"block": block, "unit": unit, "widest": widest, "junction": junction, "checkpoint": checkpoint}
            return chunks.chunk(begin, most, prompt, length, **sizes)

        got = taken(start, wanted)
        stop = start + got
        position = chunks.checkpoint_position(start, stop, prompt, length, block=block, unit=unit)
        exported = s.merged(lambda: checkpoint and position > 0)
        enough = s.merged(lambda: wanted >= 1 and (wanted >= block or wanted >= widest or start + wanted >= end))

        def allowed(at: Any) -> Any:
            return on_grid(at, block) or (at == tail and tail > last) or at == junction

        yield from s.promise("chunk budget", "A chunk takes from 0 to `wanted` tokens.", lambda: 0 <= got <= wanted)
        yield from s.promise(
            "chunk progress",
            "A chunk that may take a block, or what the widest step may, or the rest of the prefill, takes a token or more.",
            lambda: got >= 1,
            lambda: enough,
        )
        yield from s.promise(
            "chunk waits",
            "A chunk takes nothing exactly if it may take nothing, or if it may neither reach the end of the prefill nor a "
            "position on the grid, and a block fits into a step.",
            lambda: (
                got == 0
                if wanted == 0 or (start + wanted < end and (start + wanted) // block * block <= start and block <= widest)
                else got >= 1
            ),
        )
        yield from s.promise(
            "chunk cover",
            "What is left to compute shrinks with each chunk that has enough budget, and is never less than nothing: such chunks "
            "add up to the text.",
            lambda: 0 <= length - stop < length - start,
            lambda: start < length and enough,
        )
        yield from s.promise(
            "chunk end",
            "A chunk that gets on and ends before the prefill does ends on the grid, at the junction, or at the tail if the text has "
            "not outgrown its block; if a block fits into a step.",
            lambda: allowed(stop),
            lambda: got >= 1 and stop < end and block <= widest,
        )
        yield from s.promise(
            "chunk key",
            "Such an end is a unit boundary, so that a state kept there has a key, if the junction is one.",
            lambda: stop // unit * unit == stop,
            lambda: got >= 1 and stop < end and block <= widest and junction // unit * unit == junction,
        )
        yield from s.promise(
            "chunk junction",
            "No chunk of the prefill runs past the junction.",
            lambda: not start < junction < stop,
            lambda: start < end,
        )
        yield from s.promise(
            "chunk stops",
            "A chunk of the prefill that exports nothing runs neither past the last block nor past the tail, unless the text has "
            "outgrown the tail.",
            lambda: not start < last < stop and not (tail > last and start < tail < stop),
            lambda: start < end and not exported,
        )
        yield from s.promise(
            "chunk realign",
            "A chunk of the prefill that exports nothing runs past no position on the grid if it starts inside a block, nor if "
            "no step is as wide as a block.",
            lambda: not start < at // block * block < stop,
            lambda: start < end and not exported and (start // block * block < start or widest < block),
        )
        yield from s.promise(
            "checkpoint position",
            "An exported state lies inside its chunk, on a unit boundary, and leaves a token of the prefill, which the chunk ends; "
            "its slot, the last but one, is neither that of the first state nor that of the last.",
            lambda: (
                start < position < end <= stop
                and position // unit * unit == position
                and -(-start // block) <= -(-stop // block) - 2
            ),
            lambda: exported,
        )
        yield from s.promise(
            "tail",
            "The tail is a unit boundary that leaves from one token to a unit of the prompt.",
            lambda: tail // unit * unit == tail and 0 <= tail and 1 <= prompt - tail <= unit,
        )
        yield from s.promise(
            "junction stop",
            "The stop for a junction is at it, or at the grid position less than a block before it; an exact one in the prompt is "
            "at it.",
            lambda: (
                0 <= junction - marked < block
                and (marked == junction if exact and junction <= prompt else marked // block * block == marked)
            ),
        )
        one, two = s.numbers("stop stop2")
        inside = s.merged(lambda: one // block * block < one and two // block * block < two)
        yield from s.promise(
            "chunk once per block",
            "Two such ends off the grid and in one block are the tail and the junction: so it is one per block where the junction "
            "is on the grid or in another block.",
            lambda: (one == tail and two == junction) or (one == junction and two == tail),
            lambda: allowed(one) and allowed(two) and inside and one != two and one // block == two // block,
        )


def hybrid(s: Sizes, states: int, fine: bool) -> tuple[Geometry, Any]:
    """Any geometry of one attention group and some state groups, and the grain of its hits. They are fine where some state's
    block is longer than the unit: here the first's, as any order will do. Else all of them are the unit."""
    unit, *ratios = s.numbers("unit attention first second third")[: states + 2]
    sizes = [ratio * unit for ratio in (ratios if fine else ratios[:1])] + [unit] * (0 if fine else states)
    s.assume("sizes", lambda: unit >= 1 and all(size >= unit for size in sizes) and (not fine or sizes[1] > unit))
    kinds = [Kind.APPEND_ONLY] + [Kind.STATE] * states
    checkpoints = [s.flag(f"checkpoint{n}") for n in range(states + 1)]
    shape = Geometry(tuple(map(Group, range(states + 1), kinds, sizes, checkpoints)), unit, 2)
    return shape, unit if fine else shape.scheduler_block


def configured_chunks(states: int = 2) -> Iterator[Obligation]:
    """What `next_chunk` asks `chunk` for a configuration with an attention group and two state groups."""
    for fine, kind in ((True, "fine"), (False, "coarse")):
        s = Sizes(unit=2, attention=2, first=3, second=1)
        start, wanted, prompt, length, junction, budget = s.numbers("start wanted prompt length junction budget")
        with s.running(chunks, geometry):
            shape, grain = hybrid(s, states, fine)

            def meets(*asked: Any, block: Any, unit: Any, widest: Any, junction: Any, checkpoint: Any) -> Any:
                ends = [on_grid(block, group.block_size) for group in shape.states]
                return on_grid(block, unit) and all(ends) and unit == grain and widest == budget and block >= unit

            config = Config(shape, max_batched_tokens=budget, junctions=s.flag("exact"))
            with s.running(chunks, chunk=meets):
                yield from s.promise(
                    f"next chunk, {kind}",
                    f"With an attention group, two state groups and {kind} hits, a chunk is asked for with a block that ends a block "
                    "of every state group, and with the grain of hits as unit, which divides it: so all promises of it hold.",
                    lambda: chunks.next_chunk(config, start, wanted, prompt, length, junction),
                )


def on_grid(at: Any, size: Any) -> Any:
    return at // size * size == at


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


def asked(s: Sizes, group: Group, start: Any, stop: Any, tag: str = "") -> tuple[Ask, Any]:
    """Anything that an engine may ask for a group, and whether it is: a new request's hits fill the slots before `start`, a
    running one's table does; only states are snapshot or exported, and the latter in a chunk that reaches into two more slots."""
    held, hits, unheld = s.numbers(f"held{tag} hits{tag} unheld{tag}")
    ask = Ask(group, held, start, stop, hits, unheld, s.flag(f"snapshot{tag}"), s.flag(f"export{tag}"))
    slots = group.blocks_for(start)
    return ask, s.merged(
        lambda: (
            0 <= unheld <= hits
            and ((hits == 0 and held >= slots) or (held == 0 and hits == slots))
            and (group.kind is Kind.STATE or not (ask.snapshot or ask.checkpoint))
            and (not ask.checkpoint or group.blocks_for(stop) >= slots + 2)
        )
    )


def demands() -> Iterator[Obligation]:
    """Allocations for one group of each kind, and for three groups at once."""
    s = Sizes(size0=4, size1=8, size2=4, start=6, stop=30)
    start, stop, free = s.numbers("start stop free")
    sizes = s.numbers("size0 size1 size2")
    s.assume("sizes", lambda: all(size >= 1 for size in sizes) and 0 <= start < stop)
    with s.running(demand):
        groups = [Group(n, Kind.STATE if n else Kind.APPEND_ONLY, size) for n, size in enumerate(sizes)]
        asks = [asked(s, group, start, stop, str(group.index)) for group in groups]
        takes = [s.merged(lambda ask=ask: acquired(ask)) for ask, _ in asks]
        for (ask, sane), take in zip(asks[:2], takes, strict=False):
            yield from s.promise(
                f"demand {ask.group.kind}",
                "The demand of a group is the number of blocks that its allocation takes.",
                lambda ask=ask, take=take: demand.demand(ask) == take,
                lambda sane=sane: sane,
            )
        yield from s.promise(
            "total demand",
            "An allocation over an attention group and two state groups takes no block that is not free, if its demand is met.",
            lambda: free - sum(takes) >= 0,
            lambda: all(sane for _, sane in asks) and demand.total_demand(ask for ask, _ in asks) <= free,
        )


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
    found = [s.declared(f"keyed{n}", INT, z3.BoolSort()) for n in range(groups)]
    return lambda key: s.symbol(found[key[0]](s.symbol(key[1]).term))


def longest_hits() -> Iterator[Obligation]:
    """The hits of one group, whatever can be found; the searches may be of any length."""
    s = Sizes(unit=2, ratio=3, limit=20)
    unit, ratio, limit, n, found = s.numbers("unit ratio limit n found")
    size = ratio * unit
    s.assume("sizes", lambda: unit >= 1 and ratio >= 1 and limit >= 0)
    keyed, text, group, other = findable(s, 2), Text(limit), Group(0, Kind.APPEND_ONLY, size), Group(1, Kind.STATE, size)
    full = s.merged(lambda: 0 < n and n // size * size == n)
    for s.shown in (n, found):
        with s.running(lookup):
            run = lookup.full_run(keyed, text, group, limit)
            longest = lookup.longest_append_only(keyed, text, group, unit, limit)
            if s.shown is n:
                yield from s.promise(
                    "attention hit",
                    "The longest hit of an attention group ends at a unit boundary within the limit; the ends of all full blocks in "
                    "it are found, and so is its own end if it is inside a block. So each shorter unit boundary is covered, too.",
                    lambda: (
                        0 <= longest <= limit
                        and longest // unit * unit == longest
                        and (keyed((0, n)) if full and n <= longest else True)
                        and (longest // size * size == longest or keyed((0, longest)))
                    ),
                )
                state = lookup.longest_state(keyed, text, other, unit, limit)
                yield from s.promise(
                    "state hit",
                    "The longest hit of a state group is the greatest unit boundary within the limit that is found, or 0.",
                    lambda: (
                        0 <= state <= limit
                        and state // unit * unit == state
                        and (state == 0 or keyed((1, state)))
                        and not (n > state and n <= limit and n // unit * unit == n and keyed((1, n)))
                    ),
                )
            else:
                yield from s.promise(
                    "attention hit is greatest",
                    "No length beyond it within the limit is covered by an attention group: either the first full block beyond "
                    "the run is missing, or no boundary from that length to the end of its block is found.",
                    lambda: n <= longest,
                    lambda: (
                        0 < n <= found <= limit
                        and n // unit * unit == n
                        and found // unit * unit == found
                        and (found - 1) // size == (n - 1) // size
                        and keyed((0, found))
                        and (keyed((0, run + size)) if run + size <= n else True)
                    ),
                )


class Again(Exception):
    """The rounds of `common_hit` go on."""


def common_hits(states: int = 2) -> Iterator[Obligation]:
    """One round of `common_hit` from any candidate. The rounds go on from a smaller one as they began, so by induction what
    is shown for a round is true of all: the attention hit, which only bounds the first candidate, may be any number here."""
    for fine, kind in ((True, "fine"), (False, "coarse")):
        s = Sizes(unit=2, attention=2, first=3, second=1, size=20)
        size, n, end, later = s.numbers("size n end later")
        s.assume("a text", lambda: size >= 0 and end >= 0)
        keyed, text, s.shown = findable(s, states + 1), Text(size), n
        candidates: list[Any] = []
        skip = False
        with s.running(lookup, geometry):
            (shape, grain), plain = hybrid(s, states, fine), lookup.longest_state

            def rounds(keyed: Any, path: Any, group: Group, grain: Any, limit: Any) -> Any:
                candidates.append(limit)
                if len(candidates) <= states:
                    return plain(keyed, path, group, grain, limit)
                if not skip:
                    raise Again
                if len(candidates) == states + 1 and not s.every(0 <= later, later <= limit, on_grid(later, grain)):
                    raise Dropped
                return later

            def one_round(last: Any, another: Any) -> Any:
                candidates.clear()
                try:
                    hit = lookup.common_hit(keyed, text, shape, size)
                except Again:
                    return another(candidates[0], candidates[-1])
                return bool(candidates) and last(candidates[0], hit)

            def covered(length: Any) -> Any:
                return s.every(*(s.symbol(keyed((group.index, length))) for group in shape.states))

            with s.running(lookup, longest_state=rounds, longest_append_only=lambda *_: end, full_run=lambda *_: end):
                yield from s.promise(
                    f"common hit, {kind}",
                    f"With {kind} hits, a round that is the last one ends at a length that every state group covers; another one "
                    "ends at a smaller candidate. Neither passes a length within the candidate that all state groups cover.",
                    lambda: one_round(
                        lambda first, hit: (hit.length == 0 or covered(hit.length)) and (n <= hit.length or n > first),
                        lambda first, then: 0 <= then < first and on_grid(then, grain) and (n <= then or n > first),
                    ),
                    lambda: s.every(n >= 0, on_grid(n, grain), covered(n)),
                )
                skip = True  # to the last of the rounds, which ends at some smaller candidate
                yield from s.promise(
                    f"common hit bounds, {kind}",
                    "A hit leaves a token to compute and ends at a multiple of the grain. So does the junction: there is none, or it "
                    "is beyond the hit and not beyond the attention hit.",
                    lambda: one_round(
                        lambda first, hit: (
                            (hit.length <= size - 1 or hit.length == 0)
                            and (0 <= hit.length <= end and on_grid(hit.length, grain))
                            and (hit.junction == 0 or (on_grid(hit.junction, grain) and hit.length < hit.junction <= end))
                            and (hit.junction == first or hit.length == first)
                        ),
                        lambda first, then: False,
                    ),
                )


@dataclass(frozen=True)
class Digests:
    """A chain of any length, of which digest i is just i."""

    unit: Any
    extent: Any

    def __getitem__(self, index: Any) -> Any:
        return index


def views() -> Iterator[Obligation]:
    """A chain read at a block size that its unit divides."""
    s = Sizes(unit=2, ratio=3, units=20)
    unit, ratio, units, index = s.numbers("unit ratio units index")
    block = ratio * unit
    s.assume("sizes", lambda: unit >= 1 and ratio >= 1 and units >= 0)

    def extent(whole: Any) -> Any:
        return whole.extent if isinstance(whole, Digests) else type(whole).__len__(whole)

    class Indices:
        def __init__(self, stop: Any) -> None:
            self.stop = stop

        def __getitem__(self, at: Any) -> Any:
            if not -self.stop <= at < self.stop:
                raise IndexError
            return at if at >= 0 else at + self.stop

    with s.running(hashing, len=extent, range=Indices):
        view = hashing.Chain.view(Digests(unit, units), block)  # type: ignore[arg-type]
        size = s.merged(lambda: extent(view))
        yield from s.promise(
            "view",
            "The name of block i in a view of a chain is the digest of the prefix that ends with the block, and each block whose "
            "units all are in the chain has one.",
            lambda: (view[index] + 1) * unit == (index + 1) * block and size * ratio <= units < (size + 1) * ratio,
            lambda: 0 <= index < size,
        )
