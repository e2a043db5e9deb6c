"""The shadow device: a correct scheduler gives no faults, each planted fault gives its own, and looking once is enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.audit.checks import CHECKS, Side
from kvproof.spec.device import Device, next_token
from kvproof.spec.faults import Fault
from kvproof.spec.geometry import Geometry, Kind
from kvproof.spec.lineage import UNKNOWN, Forest, StateAt
from kvproof.spec.records import Checkpoint, Copy, Load, Meaning, Request, Row, Step

GEOMETRY = Geometry.of(4, (8,), num_blocks=40)  # attention blocks of 4 tokens, state blocks of 8

quick = settings(derandomize=True, deadline=None, max_examples=100)


def shadow(geometry: Geometry = GEOMETRY) -> Device:
    return Device(geometry, Forest())


def prompt(name: str, length: int) -> Request:
    return Request(name, tuple(ord(name[0]) + i for i in range(length)), max_tokens=64)


def checks(faults: Iterable[Fault]) -> list[tuple[str, str]]:
    """What fired, after a look at the form of each fault."""
    faults = list(faults)
    for fault in faults:
        assert CHECKS[fault.check].side is Side.OUTSIDE
        assert fault.what
        assert not any(character.isdigit() for character in fault.signature)
    return [(fault.check, fault.signature) for fault in faults]


class Toy:
    """A correct scheduler in a few lines: fresh blocks for what is computed, blocks of the dead reused at once."""

    def __init__(self, geometry: Geometry = GEOMETRY) -> None:
        self.groups = geometry.groups
        self.free = list(range(1, geometry.num_blocks))
        self.tables: dict[str, list[list[int]]] = {}
        self.hits: dict[str, int] = {}  # shared tokens of requests that have no row yet
        self.at: dict[str, int] = {}
        self.steps = 0

    def hit(self, name: str, other: str, tokens: int) -> None:
        """`name` starts behind the first tokens of `other`, on its blocks."""
        self.hits[name] = tokens
        self.tables[name] = [
            column[: group.blocks_for(tokens)] for group, column in zip(self.groups, self.tables[other], strict=True)
        ]

    def row(self, name: str, count: int, samples: bool = True) -> Row:
        new = name not in self.at
        start = self.at.setdefault(name, self.hits.pop(name, 0))
        table = self.tables.setdefault(name, [[] for _ in self.groups])
        appended = []
        for group, column in zip(self.groups, table, strict=True):
            slots = range(len(column), group.blocks_for(start + count))
            appended.append([0 if group.kind is Kind.STATE and slot != slots[-1] else self.free.pop() for slot in slots])
            column.extend(appended[-1])
        self.at[name] = start + count
        if new:
            return Row(name, start, count, samples, table=[list(column) for column in table])
        return Row(name, start, count, samples, appended=appended)

    def drop(self, name: str) -> str:
        """The request loses its table, finished or preempted, and its blocks are the next to be used."""
        self.free += [block for column in self.tables.pop(name) for block in column if block]
        del self.at[name]
        return name

    def step(self, *rows: Row, **rest: Sequence[object]) -> Step:
        self.steps += 1
        return Step(self.steps, list(rows), **rest)  # type: ignore[arg-type]


def prefilled(*names: str, tokens: int = 8) -> tuple[Device, Toy]:
    """A device and a scheduler after the first step of some requests."""
    device, toy = shadow(), Toy()
    for name in names:
        device.admit(prompt(name, tokens))
    assert device.run(toy.step(*(toy.row(name, tokens) for name in names))) == []
    return device, toy


# --- correct runs ---


def test_next_token_is_a_function_of_the_text() -> None:
    root = Forest().root()
    texts = [root.extended(tokens) for tokens in ([], [1], [2], [1, 2], [2, 1], [1, 2, 3])]
    assert [next_token(text) for text in texts] == [next_token(Forest().root().extended(t.tokens())) for t in texts]
    assert len({next_token(text) for text in texts}) == len(texts)
    assert all(0 <= next_token(text, 5) < 5 for text in texts)


@quick
@given(data=st.data(), attention=st.sampled_from([1, 2, 4, 6]), states=st.lists(st.sampled_from([2, 4, 6]), max_size=2))
def test_any_chunking_of_one_request_is_right(data: st.DataObject, attention: int, states: list[int]) -> None:
    geometry = Geometry.of(attention, tuple(states), num_blocks=200)
    device, toy = shadow(geometry), Toy(geometry)
    length = data.draw(st.integers(1, 24))
    device.admit(prompt("a", length))
    at = 0
    for _ in range(data.draw(st.integers(1, 12))):
        count = data.draw(st.integers(1, length - at)) if at < length else 1
        at += count
        step = toy.step(toy.row("a", count, samples=at >= length))
        assert device.run(step) == []
        assert device.table("a") == toy.tables["a"]
        assert set(device.sampled(step)) == ({"a"} if at >= length else set())


@quick
@given(data=st.data())
def test_any_legal_mix_of_requests_is_right(data: st.DataObject) -> None:
    device, toy, known = shadow(), Toy(), dict[str, int]()
    for name in "abc":
        device.admit(prompt(name, 10))
        known[name] = 10
    for _ in range(data.draw(st.integers(1, 15))):
        lost = [toy.drop(name) for name in sorted(toy.at) if data.draw(st.integers(0, 4)) == 0]
        finished = [name for name in lost if data.draw(st.booleans())]
        for name in finished:
            device.admit(prompt(name, 10))
            known[name] = 10
        rows = []
        for name in data.draw(st.lists(st.sampled_from("abc"), unique=True)):
            count = data.draw(st.integers(1, known[name] - toy.at.get(name, 0)))
            rows.append(toy.row(name, count, toy.at.get(name, 0) + count == known[name]))
            known[name] += rows[-1].samples
        step = toy.step(*rows, finished=finished, preempted=[name for name in lost if name not in finished])
        assert device.run(step) == []
        assert set(device.sampled(step)) == {row.request for row in rows if row.samples}
        device.complete(step.number)
        assert {name: device.table(name) for name in "abc" if device.table(name)} == toy.tables


def test_a_request_may_hit_what_another_one_computed() -> None:
    device, toy = prefilled("a")
    device.admit(Request("b", (*prompt("a", 8).prompt, 5, 6), 4))
    toy.hit("b", "a", 8)
    assert device.run(toy.step(toy.row("a", 1), toy.row("b", 2))) == []


def test_attention_may_read_what_another_row_of_the_step_writes() -> None:
    geometry = Geometry.of(4, num_blocks=9)
    device, toy = shadow(geometry), Toy(geometry)
    device.admit(prompt("a", 9))
    device.admit(Request("b", prompt("a", 9).prompt, 4))
    row = toy.row("a", 9)
    toy.hit("b", "a", 8)
    assert device.run(toy.step(toy.row("b", 1), row)) == []


def test_a_state_may_not() -> None:
    device, toy = shadow(), Toy()
    device.admit(prompt("a", 9))
    device.admit(Request("b", prompt("a", 9).prompt, 4))
    row = toy.row("a", 8, samples=False)
    toy.hit("b", "a", 8)
    assert checks(device.run(toy.step(row, toy.row("b", 1)))) == [("state-ready", "state, never written")]


def test_a_salt_separates_equal_prompts() -> None:
    device, toy = prefilled("a")
    device.admit(Request("b", (*prompt("a", 8).prompt, 5), 4, salt="other"))
    toy.hit("b", "a", 8)
    assert checks(device.run(toy.step(toy.row("b", 1)))) == [
        ("state-ready", "state, one of another text"),
        ("read-lineage", "attention, slot holds another text"),
        ("read-lineage", "attention, slot holds another text"),
    ]


def test_sampled_tokens_do_not_depend_on_what_was_read() -> None:
    (device, toy), (clean, twin) = prefilled("a"), prefilled("a")
    damage = toy.tables["a"][1][0]
    first = toy.step(toy.row("a", 1), zeroes=[damage])
    assert checks(device.run(first)) == [("state-ready", "state, zeroed")]
    other = twin.step(twin.row("a", 1))
    assert clean.run(other) == []
    assert device.sampled(first) == clean.sampled(other)
    assert device.run(toy.step(toy.row("a", 1))) == []  # one corruption, one fault


# --- planted faults ---


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (Row("a", 9, 1, True, appended=[[30], [31]]), [("row-continues", "row, tokens skipped")]),
        (Row("a", 7, 1, True, appended=[[30], [31]]), [("row-continues", "row, tokens again")]),
        (Row("a", 8, 2, True, appended=[[30], [31]]), [("row-continues", "row, past the text")]),
        (Row("a", 8, 0, True), [("row-continues", "row, no tokens")]),
        (Row("x", 0, 1, True, table=[[30], [31]]), [("table-covers", "row, unknown request")]),
        (Row("a", 8, 1, True), [("table-covers", "append_only slot, past the table")]),
        (Row("a", 8, 1, True, appended=[[0], [31]]), [("table-covers", "append_only slot, null block")]),
        (Row("a", 8, 1, True, appended=[[99], [31]]), [("table-covers", "append_only slot, outside the pool")]),
        (Row("a", 8, 1, True, appended=[[30], [0]]), [("table-covers", "state slot, null block")]),
        (Row("a", 8, 1, True, appended=[[30], [-1]]), [("table-covers", "state slot, outside the pool")]),
    ],
)
def test_a_wrong_row(row: Row, expected: list[tuple[str, str]]) -> None:
    device, toy = prefilled("a")
    found = checks(device.run(toy.step(row)))
    assert set(expected) <= set(found)
    assert {check for check, _ in found} <= {expected[0][0], "state-ready", "read-lineage", "table-covers"}


def test_a_missing_block_is_one_fault_for_each_slot() -> None:
    device, toy = prefilled("a")
    assert len(device.run(toy.step(Row("a", 8, 1, True, appended=[[0], [0]])))) == 2
    assert device.run(toy.step(Row("a", 9, 1, True))) == []


@pytest.mark.parametrize("row", [Row("a", 0, 1, True, table=[[1]]), Row("a", 8, 1, True, appended=[[1]])])
def test_a_row_without_a_table_per_group_is_no_record(row: Row) -> None:
    device, toy = prefilled("a")
    with pytest.raises(ValueError, match=r"table|shorter"):
        device.run(toy.step(row))


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ({"zeroes": [0]}, [("null-written", "zero, null block")]),
        ({"zeroes": [40]}, [("table-covers", "zero, outside the pool")]),
        ({"copies": [Copy(0, 30)]}, [("null-written", "copy, null block")]),
        ({"copies": [Copy(30, 0)]}, [("null-written", "copy, null block")]),
        ({"copies": [Copy(30, 40)]}, [("copy-batch", "copy, outside the pool")]),
        ({"copies": [Copy(30, 32), Copy(31, 32)]}, [("copy-batch", "copy, shared destination")]),
        ({"checkpoints": [Checkpoint("a", 1, 0, 10)]}, [("null-written", "checkpoint, null block")]),
        ({"checkpoints": [Checkpoint("a", 1, 30, 12)]}, [("state-ready", "checkpoint, outside its chunk")]),
        ({"checkpoints": [Checkpoint("x", 1, 30, 10)]}, [("state-ready", "checkpoint, outside its chunk")]),
    ],
)
def test_a_wrong_page_move(rest: dict[str, list[object]], expected: list[tuple[str, str]]) -> None:
    device, toy = shadow(), Toy()
    device.admit(prompt("a", 12))
    assert device.run(toy.step(toy.row("a", 8, samples=False))) == []
    assert checks(device.run(toy.step(toy.row("a", 4), **rest))) == expected


@pytest.mark.parametrize(
    ("group", "rest", "expected"),
    [
        (0, {"zeroes": ["mine"]}, ("read-lineage", "attention, zeroed")),
        (0, {"copies": ["fresh"]}, ("read-lineage", "attention, never written")),
        (0, {"copies": ["theirs"]}, ("read-lineage", "attention, slot holds another text")),
        (0, {"copies": ["state"]}, ("read-lineage", "attention, bytes of another group")),
        (1, {"zeroes": ["mine"]}, ("state-ready", "state, zeroed")),
        (1, {"copies": ["fresh"]}, ("state-ready", "state, never written")),
        (1, {"copies": ["theirs"]}, ("state-ready", "state, one of another text")),
        (1, {"copies": ["rows"]}, ("state-ready", "state, bytes of another group")),
    ],
)
def test_a_block_that_is_overwritten_under_its_reader(
    group: int, rest: dict[str, list[str]], expected: tuple[str, str]
) -> None:
    device, toy = prefilled("a", "b")
    mine, theirs = toy.tables["a"][group][0], toy.tables["b"][group][0]
    sources = {"fresh": 1, "theirs": theirs, "state": toy.tables["b"][1][0], "rows": toy.tables["b"][0][0]}
    damage = Step(
        2,
        zeroes=[mine for _ in rest.get("zeroes", [])],
        copies=[Copy(sources[name], mine) for name in rest.get("copies", [])],
    )
    assert device.run(damage) == []  # nobody read yet
    toy.steps += 1
    faults = device.run(toy.step(toy.row("a", 1), toy.row("b", 1)))
    assert checks(faults) == [expected]
    assert [(fault.request, fault.blocks, fault.step) for fault in faults] == [("a", (mine,), 3)]
    assert device.run(toy.step(toy.row("a", 1))) == []  # the same damage is not reported again


def test_rows_that_were_never_computed_are_partly_written() -> None:
    device, toy = prefilled("a", tokens=6)
    device.admit(Request("b", (*prompt("a", 8).prompt, 5), 4))
    toy.hit("b", "a", 7)
    assert ("read-lineage", "attention, slot partly written") in checks(device.run(toy.step(toy.row("b", 2))))


def test_a_state_of_another_position() -> None:
    device, toy = prefilled("a", tokens=6)
    device.admit(Request("b", prompt("a", 8).prompt, 4))
    toy.hit("b", "a", 5)
    assert checks(device.run(toy.step(toy.row("b", 1)))) == [("state-ready", "state, one from another position")]


def test_a_block_with_two_owners() -> None:
    device, toy = prefilled("a", "b")
    toy.free.append(toy.tables["a"][1][0])
    toy.free.append(toy.tables["b"][0][1])  # both handed out twice
    assert device.run(toy.step(toy.row("a", 1))) == []
    assert checks(device.run(toy.step(toy.row("b", 1)))) == [("read-lineage", "attention, slot holds another text")]


def test_a_block_in_two_slots_of_one_table() -> None:
    geometry = Geometry.of(2, num_blocks=9)
    device = shadow(geometry)
    device.admit(prompt("a", 4))
    assert device.run(Step(1, [Row("a", 0, 2, False, table=[[1, 1]])])) == []
    faults = device.run(Step(2, [Row("a", 2, 2, True)]))
    assert checks(faults) == [("read-lineage", "attention, slot holds another position")]


def test_damage_that_a_rewound_row_does_not_read_is_seen_later() -> None:
    device, toy = prefilled("a")
    tail = toy.tables["a"][0][1]
    faults = device.run(toy.step(Row("a", 2, 1, False), zeroes=[tail]))
    assert checks(faults) == [
        ("row-continues", "row, tokens again"),
        ("state-ready", "state, one from another position"),
    ]
    faults = device.run(toy.step(Row("a", 7, 1, False)))
    assert ("read-lineage", "attention, slot partly written") in checks(faults)


def test_two_state_groups_do_not_read_each_other() -> None:
    geometry = Geometry.of(4, (4, 4), num_blocks=20)
    device, toy = shadow(geometry), Toy(geometry)
    device.admit(prompt("a", 4))
    assert device.run(toy.step(toy.row("a", 4))) == []
    (one,), (other,) = toy.tables["a"][1:]
    assert checks(device.run(toy.step(toy.row("a", 1), copies=[Copy(one, other)]))) == [
        ("state-ready", "state, bytes of another group")
    ]


def test_two_copies_to_one_block_leave_nothing_known() -> None:
    device, toy = prefilled("a")
    (block,) = toy.tables["a"][1]
    assert len(device.run(toy.step(copies=[Copy(30, block), Copy(block, block)]))) == 1
    assert checks(device.run(toy.step(toy.row("a", 1)))) == [("state-ready", "state, never written")]


def test_an_extension_of_the_same_text_is_no_damage() -> None:
    geometry = Geometry.of(4, num_blocks=9)
    device = shadow(geometry)
    for name in "ab":
        device.admit(Request(name, (1, 2), 9))
    assert device.run(Step(1, [Row("a", 0, 2, True, table=[[1]]), Row("b", 1, 1, True, table=[[1]])])) == []
    assert device.run(Step(2, [Row("a", 2, 1, True)])) == []
    assert device.run(Step(3, [Row("b", 2, 1, True)])) == []


# --- copies and checkpoints ---


@pytest.mark.parametrize(("meaning", "faults"), [(Meaning.SIMULTANEOUS, 0), (Meaning.IN_ORDER, 2)])
def test_copies_of_a_step_have_their_declared_meaning(meaning: Meaning, faults: int) -> None:
    """Blocks x, y change places over z: right if all reads come first, else both hold what the first one copied."""
    device, toy = prefilled("a", "b")
    x, y = toy.tables["a"][1][0], toy.tables["b"][1][0]
    swap = toy.step(copies=[Copy(x, y), Copy(y, x)])
    swap.meaning = meaning
    assert device.run(swap) == []
    toy.tables["a"][1][0], toy.tables["b"][1][0] = y, x
    rows = [Row(name, 8, 1, True, table=[[*toy.tables[name][0], 30 + i], [toy.tables[name][1][0], 32 + i]])
            for i, name in enumerate("ab")]  # fmt: skip
    found = checks(device.run(toy.step(*rows)))
    assert len(found) == faults // 2
    assert {check for check, _ in found} <= {"state-ready"}


def test_copies_chain_over_steps_and_come_before_the_forward_pass() -> None:
    device, toy = prefilled("a")
    block = toy.tables["a"][1][0]
    assert device.run(toy.step(copies=[Copy(block, 30)])) == []
    assert device.run(toy.step(copies=[Copy(30, 31)], zeroes=[31])) == []  # zero, then copy
    device.admit(Request("b", (*prompt("a", 8).prompt, 5), 4))
    row = Row("b", 8, 1, True, table=[[*toy.tables["a"][0], 32], [31, 33]])
    assert device.run(toy.step(row, copies=[Copy(31, 30)])) == []


def test_a_private_copy_of_a_partial_block_serves_its_reader() -> None:
    """Consumer CoW: the copy of this step is read by the row of this step, and the source goes on with other text."""
    device, toy = prefilled("a", tokens=6)
    device.admit(Request("b", (*prompt("a", 6).prompt, 5), 4))
    attention, state = toy.tables["a"]
    row = Row("b", 6, 1, True, table=[[attention[0], 30], [31]])
    copies = [Copy(attention[1], 30), Copy(state[0], 31)]
    assert device.run(toy.step(toy.row("a", 1), row, copies=copies)) == []
    assert device.run(toy.step(toy.row("a", 1), Row("b", 7, 1, True))) == []


@pytest.mark.parametrize("meaning", list(Meaning))
def test_a_hit_on_a_private_copy_of_the_same_step(meaning: Meaning) -> None:
    """Found in vLLM 0.32.0: c hits the block that b has just been given as its private copy, so the batch is a chain.

    Read all, then write all: c gets what b's block held before the step.
    """
    device, toy = prefilled("a", tokens=6)
    for name in "bc":
        device.admit(Request(name, (*prompt("a", 6).prompt, 5), 4))
    (shared, partial), (state,) = toy.tables["a"]
    rows = [Row("b", 6, 1, True, table=[[shared, 20], [21]]), Row("c", 6, 1, True, table=[[shared, 22], [23]])]
    step = toy.step(*rows, copies=[Copy(partial, 20), Copy(20, 22), Copy(state, 21), Copy(state, 23)], zeroes=[20, 22])
    step.meaning = meaning
    faults = [(fault.check, fault.request) for fault in device.run(step)]
    assert faults == ([("read-lineage", "c")] if meaning is Meaning.SIMULTANEOUS else [])


def test_a_checkpoint_holds_the_state_inside_the_chunk() -> None:
    device, toy = shadow(), Toy()
    device.admit(prompt("a", 12))
    assert device.run(toy.step(toy.row("a", 12), checkpoints=[Checkpoint("a", 1, 30, 8)])) == []
    device.admit(Request("b", (*prompt("a", 8).prompt, 5), 4))
    assert device.run(toy.step(Row("b", 8, 1, True, table=[[*toy.tables["a"][0][:2], 32], [30, 33]]))) == []


# --- the life of a request on the worker ---


def test_a_preempted_request_comes_back_with_a_whole_table() -> None:
    device, toy = prefilled("a")
    toy.drop("a")
    assert device.run(toy.step(preempted=["a"])) == []
    assert device.table("a") == []
    assert device.requests == {"a"}
    assert checks(device.run(toy.step(Row("a", 8, 1, True)))) == [("table-covers", "row, no table")]
    assert device.run(toy.step(toy.row("a", 9))) == []


def test_a_token_that_was_sampled_once_stays_known() -> None:
    """Asynchronous: preempted with a token in flight, resumed without it, preempted again, resumed with it."""
    device, toy = prefilled("a")
    assert device.run(toy.step(toy.row("a", 1))) == []
    for count in (8, 10):
        step = toy.step(preempted=[toy.drop("a")])
        step.rows.append(toy.row("a", count))
        assert device.run(step) == []


def test_an_id_may_be_used_again() -> None:
    device, toy = prefilled("a")
    device.admit(Request("a", (7, 7, 7), 4))  # the client is ahead of the worker
    assert device.run(toy.step(toy.row("a", 1))) == []  # still the first one
    toy.drop("a")
    step = toy.step(toy.row("a", 3), finished=["a"])
    assert device.run(step) == []
    assert device.sampled(step) == {"a": next_token(Forest().root().extended((7, 7, 7)))}


def test_the_first_of_an_id_that_never_ran_leaves_nothing() -> None:
    device, toy = shadow(), Toy()
    device.admit(prompt("a", 9))
    device.admit(prompt("a", 3))  # the first was aborted while it waited
    assert device.run(toy.step(toy.row("a", 3), finished=["a"])) == []
    assert checks(device.run(toy.step(toy.row("a", 2)))) == [("row-continues", "row, past the text")]


def test_a_forgotten_request_has_no_rows() -> None:
    device, toy = prefilled("a")
    faults = device.run(toy.step(toy.row("a", 1), finished=["a"]))
    assert checks(faults) == [("table-covers", "row, unknown request")]
    assert device.requests == set()


# --- steps in flight and outside writers ---


def test_an_outside_write_races_with_steps_in_flight() -> None:
    device, toy = prefilled("a")
    second = toy.step(toy.row("a", 1))
    assert device.run(second) == []
    attention, state = toy.tables["a"]
    toy.drop("a")
    assert device.run(toy.step(finished=["a"], copies=[Copy(20, 21)])) == []
    assert device.in_flight == [1, 2, 3]

    def raced(block: int) -> list[int]:
        faults = device.outside_write([block])
        assert set(checks(faults)) <= {("outside-write-race", "outside write, step in flight")}
        return [fault.step for fault in faults]

    assert raced(attention[0]) == raced(state[0]) == [1, 2]
    assert raced(attention[2]) == raced(state[1]) == [2]
    assert raced(20) == raced(21) == [3]
    assert raced(30) == []
    device.complete(1)
    assert raced(attention[0]) == [2]
    device.complete(2)
    assert raced(attention[0]) == []
    with pytest.raises(KeyError):
        device.sampled(second)


def test_an_outside_write_is_read_like_any_other() -> None:
    forest = Forest()
    device = Device(GEOMETRY, forest)
    text = forest.root().extended(range(9))
    assert device.outside_write([3], StateAt(GEOMETRY.groups[1], text.prefix(8))) == []
    device.admit(Request("a", tuple(range(9)), 4))
    found = checks(device.run(Step(1, [Row("a", 8, 1, True, table=[[1, 2, 5], [3, 4]])])))
    assert found == [("read-lineage", "attention, never written")] * 2
    device.complete(1)
    assert device.outside_write([3, 1]) == []
    assert checks(device.run(Step(2, [Row("a", 9, 1, True)]))) == [("read-lineage", "attention, never written")]


# --- looking at a slot once is enough ---

Cell = tuple[str, int, dict[int, tuple[int, ...]]]  # "state" or "rows", first token, prefixes by position behind it


class Naive:
    """The same device by brute force: bytes are prefixes written out, and every row reads its whole table."""

    def __init__(self, geometry: Geometry, texts: Mapping[str, tuple[int, ...]]) -> None:
        self.groups, self.texts = geometry.groups, texts
        self.cells: dict[int, Cell] = {}
        self.tables: dict[str, list[list[int]]] = {}

    def run(self, step: Step) -> list[tuple[str, str | None, tuple[int, ...]]]:
        for block in step.zeroes:
            self.cells.pop(block, None)
        held = [self.cells.get(copy.src) for copy in step.copies]
        for copy, cell in zip(step.copies, held, strict=True):
            self.cells.pop(copy.dst, None)
            if cell is not None:
                self.cells[copy.dst] = (cell[0], cell[1], dict(cell[2]))
        self.tables.update({row.request: row.table for row in step.rows if row.table is not None})
        bad = [bad for row in step.rows for bad in self.read_states(row)]
        for row in step.rows:
            self.write(row)
        return sorted(bad + [bad for row in step.rows for bad in self.read_rows(row)])

    def read_states(self, row: Row) -> Iterable[tuple[str, str, tuple[int, ...]]]:
        if row.start:
            block = self.tables[row.request][1][(row.start - 1) // self.groups[1].block_size]
            if self.cells.get(block) != ("state", 0, {0: self.texts[row.request][: row.start]}):
                yield "state-ready", row.request, (block,)

    def write(self, row: Row) -> None:
        text, (attention, state) = self.texts[row.request], self.tables[row.request]
        size = self.groups[0].block_size
        for at in range(row.start, row.stop):
            block, base = attention[at // size], at - at % size
            if self.cells.get(block, ("", 0, {}))[:2] != ("rows", base):
                self.cells[block] = ("rows", base, {})
            self.cells[block][2][at - base] = text[: at + 1]
        self.cells[state[(row.stop - 1) // self.groups[1].block_size]] = ("state", 0, {0: text[: row.stop]})

    def read_rows(self, row: Row) -> Iterable[tuple[str, str, tuple[int, ...]]]:
        text, size = self.texts[row.request], self.groups[0].block_size
        for base in range(0, row.stop, size):
            block = self.tables[row.request][0][base // size]
            kind, first, prefixes = self.cells.get(block, ("", 0, {}))
            wanted = {at - base: text[: at + 1] for at in range(base, min(row.stop, base + size))}
            if (kind, first) != ("rows", base) or any(prefixes.get(at) != prefix for at, prefix in wanted.items()):
                yield "read-lineage", row.request, (block,)


TEXTS = {"a": (1, 2, 3, 4, 5, 6), "b": (1, 2, 3, 4, 9, 9), "c": (7, 7, 7, 7, 7, 7)}
BLOCKS = st.integers(1, 5)


@settings(quick, max_examples=300)
@given(data=st.data())
def test_the_first_wrong_read_of_any_run_is_seen_at_its_step(data: st.DataObject) -> None:
    """Tables, zeroing and copies at random on five blocks: as with brute force, until the first fault."""
    geometry = Geometry.of(2, (2,), num_blocks=6)
    device, naive = shadow(geometry), Naive(geometry, TEXTS)
    at = dict[str, int]()
    for name, text in TEXTS.items():
        device.admit(Request(name, text, 4))
    for number in range(1, data.draw(st.integers(2, 8))):
        rows = []
        for name in data.draw(st.lists(st.sampled_from([n for n in TEXTS if at.get(n, 0) < 6] or ["a"]), unique=True)):
            table = None
            if name not in at or data.draw(st.integers(0, 5)) == 0:
                table = [data.draw(st.lists(BLOCKS, min_size=3, max_size=3)) for _ in geometry.groups]
                at[name] = data.draw(st.sampled_from([0, 0, 0, 1, 2, 4]))
            if at[name] < 6:
                rows.append(Row(name, at[name], data.draw(st.integers(1, min(2, 6 - at[name]))), False, table=table))
                at[name] = rows[-1].stop
        destinations = data.draw(st.lists(BLOCKS, max_size=1))
        copies = [Copy(data.draw(BLOCKS), block) for block in destinations]
        step = Step(number, rows, copies=copies, zeroes=data.draw(st.lists(BLOCKS, max_size=1)))
        faults = device.run(step)
        assert sorted((fault.check, fault.request, fault.blocks) for fault in faults) == naive.run(step)
        if faults:
            return


@pytest.mark.parametrize("copy", [Copy(5, 20), Copy(20, 5)])
def test_a_load_is_not_ordered_with_the_copies_of_its_step(copy: Copy) -> None:
    device = shadow()
    device.admit(prompt("a", 9))
    load = Load("a", 0, 8, True, [[5, 6], [7]])
    row = Row("a", 8, 1, True, table=[[5, 6, 8], [0, 9]])
    assert ("outside-write-race", "load, endpoint of a copy") in checks(device.run(Step(1, [row], copies=[copy], loads=[load])))
    assert device._contents[copy.dst] is UNKNOWN
