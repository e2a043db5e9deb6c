"""Demand against an allocation that is carried out block by block."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.spec.demand import Ask, demand, total_demand
from kvproof.spec.geometry import Group, Kind

ATTENTION = Group(0, Kind.APPEND_ONLY, 4)
STATE = Group(1, Kind.STATE, 8)


def allocate(ask: Ask) -> int:
    """Blocks that leave the free ones when a simple engine allocates for one group, slot by slot."""
    taken = ask.unheld  # the hits are held first
    table = ["old"] * ask.held + ["hit"] * ask.hits
    if ask.hits and ask.start % ask.group.block_size:
        table[-1] = "copy"
        taken += 1
    if ask.snapshot:
        taken += 1
    for slot in range(len(table), ask.group.blocks_for(ask.stop)):
        is_last = slot == ask.group.blocks_for(ask.stop) - 1
        exports = ask.checkpoint and slot == ask.group.blocks_for(ask.stop) - 2
        table.append("new" if ask.group.kind is Kind.APPEND_ONLY or is_last or exports else "gap")
        taken += table[-1] == "new"
    assert len(table) >= ask.group.blocks_for(ask.stop)
    return taken


@st.composite
def asks(draw: st.DrawFn) -> Ask:
    """What a scheduler may ask: a new request with hits, or a running one with a table."""
    group = draw(st.sampled_from([ATTENTION, STATE]))
    state = group.kind is Kind.STATE
    start = draw(st.integers(0, 60))
    stop = start + draw(st.integers(0, 40))
    slots = group.blocks_for(start)
    running = draw(st.booleans())
    blocks = min(slots, 1) if state else slots
    return Ask(
        group,
        held=slots if running else 0,
        start=start,
        stop=stop,
        hits=0 if running else slots,
        unheld=0 if running else draw(st.integers(0, blocks)),
        snapshot=state and running and start % group.block_size > 0 and draw(st.booleans()),
        checkpoint=state and group.blocks_for(stop) - slots >= 2 and draw(st.booleans()),
    )


@settings(derandomize=True, deadline=None, max_examples=200)
@given(asks())
def test_demand_is_what_a_simple_allocation_takes(ask: Ask) -> None:
    assert demand(ask) == allocate(ask)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(asks(), st.integers(0, 5))
def test_demand_is_a_bound_when_the_table_is_longer_than_asked(ask: Ask, more: int) -> None:
    """Slots that were allocated for more tokens than were computed (rejected drafts) only lower it."""
    longer = Ask(ask.group, ask.held + more, ask.start, ask.stop, 0, 0, ask.snapshot, ask.checkpoint)
    shorter = Ask(ask.group, ask.held, ask.start, ask.stop, 0, 0, ask.snapshot, ask.checkpoint)
    assert allocate(longer) <= demand(longer) <= demand(shorter)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(asks())
def test_a_state_group_takes_one_block_and_the_extras(ask: Ask) -> None:
    extras = ask.partial + ask.snapshot + ask.checkpoint
    if ask.group.kind is Kind.STATE:
        assert demand(ask) <= 1 + extras + ask.unheld
    assert demand(ask) >= ask.partial + ask.snapshot + ask.unheld


@settings(derandomize=True, deadline=None)
@given(st.lists(asks(), max_size=4))
def test_the_total_is_the_sum(several: list[Ask]) -> None:
    assert total_demand(several) == sum(allocate(ask) for ask in several)


@pytest.mark.parametrize(
    ("ask", "blocks"),
    [
        (Ask(ATTENTION, held=0, start=0, stop=6), 2),  # two new blocks
        (Ask(ATTENTION, held=2, start=6, stop=8), 0),  # room left
        (Ask(ATTENTION, held=0, start=6, stop=7, hits=2, unheld=1), 2),  # a hit inside a block: private copy, one evictable
        (Ask(ATTENTION, held=0, start=8, stop=9, hits=2), 1),  # a hit on a boundary: no copy
        (Ask(STATE, held=0, start=0, stop=80), 1),  # nine gaps are free
        (Ask(STATE, held=2, start=10, stop=12), 0),  # decoding inside a block
        (Ask(STATE, held=2, start=10, stop=12, snapshot=True), 1),  # known bug 7: the snapshot's block
        (Ask(STATE, held=2, start=10, stop=17, snapshot=True), 2),
        (Ask(STATE, held=0, start=10, stop=16, hits=2, unheld=1), 2),  # known bug 7: the private copy
        (Ask(STATE, held=0, start=0, stop=80, checkpoint=True), 2),
        (Ask(STATE, held=0, start=10, stop=80, hits=2, unheld=1, checkpoint=True), 4),
    ],
)
def test_examples(ask: Ask, blocks: int) -> None:
    assert demand(ask) == blocks == allocate(ask)
