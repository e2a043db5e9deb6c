"""The shadow device: runs `Step` records on lineages instead of bytes, and says which reads get the wrong ones.

It knows only what a worker is told and keeps worker-side tables of its own, so it works on any engine. Device order is
issue order: a step runs when it is issued, and its completion matters only to outside writers. A step is forget, zero,
copy, forward. In the forward pass

1. all states are read before any is written: a row at `start` needs the state after exactly `start` tokens;
2. every layer writes the new tokens' rows before attention reads, so a row may read what another row writes;
3. the state after `stop` tokens goes to the slot of the last token, declared checkpoints to their blocks.

vLLM's align mode first copies a state from the slot where the last chunk ended to the slot where this one ends
(preprocess_mamba in vllm/v1/worker/mamba_utils.py), then computes in place: the same, as that comes after the copies.

A row reads its whole prefix at each step, but a slot is looked at once: when it is first read, and again after somebody
else overwrote its block. So a step costs what it touches, whatever the length of the tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from kvproof.spec.faults import Fault, Severity
from kvproof.spec.geometry import NULL_BLOCK, Geometry, Group, Kind
from kvproof.spec.lineage import UNKNOWN, ZERO, Content, Forest, Key, Lineage, Path, Rows, StateAt
from kvproof.spec.records import Checkpoint, Copy, Load, Meaning, Request, Row, Step

VOCABULARY = 1000


def next_token(lineage: Lineage, vocabulary: int = VOCABULARY) -> int:
    """The token that follows this text, whoever samples it: a mix of its length and last tokens, in [0, vocabulary).

    So each request's whole text is known in advance, and a wrong read is seen without a look at the output.
    """
    length, tokens = lineage.length, lineage.line.tokens
    mixed = length * 0x9E3779B1
    if length > 0:
        mixed = ((mixed ^ tokens[length]) * 0x85EBCA6B) & 0xFFFFFFFF
    if length > 1:
        mixed = ((mixed ^ tokens[length - 1]) * 0x85EBCA6B) & 0xFFFFFFFF
    return (mixed ^ mixed >> 15) % vocabulary


def drafted(text: Lineage, drafts: int) -> tuple[int, Lineage]:
    """What a drafter proposes after this text: how many of its tokens are right, and the text with all of them.

    A fixed function of the text too: the first ones are what `next_token` gives, the others are wrong.
    """
    right, node = next_token(text) % (drafts + 1), text
    for index in range(drafts):
        token = next_token(node)
        node = node.then(token if index < right else (token + 1) % VOCABULARY)
    return right, node


def load_contents(
    load: Load, groups: Iterable[Group], text: Callable[[int], Lineage]
) -> Iterator[tuple[Group, int, int, Content, Key]]:
    """What a load brings: for each block that it fills its group, slot, id, content, and what a reader may rely on.

    The contents are objects of their own, unlike those that the forward pass leaves: `Device.spoil` knows them by that.
    """
    for group, blocks in zip(groups, load.blocks, strict=True):
        size = group.block_size
        first = (load.stop - 1) // size if group.kind is Kind.STATE else load.start // size
        for slot, block in enumerate(blocks, first):
            key = text(min(load.stop, (slot + 1) * size)).key(group)
            rows = Rows(group, ((max(load.start, slot * size), key.lineage),))
            yield group, slot, block, rows if group.kind is Kind.APPEND_ONLY else StateAt(group, key.lineage), key


class _Reader:
    """A request as the worker knows it.

    known: tokens of its text that exist, the prompt and what was sampled so far. computed: where its last row stopped.
    table: block ids per group; no groups while preempted. seen: per group, leading slots that were read at least once.
    stale: per group, seen slots whose block was overwritten since. reported: (group, slot) known to have no block.
    text: what its last row with drafts wrote, right or wrong.
    """

    __slots__ = ("computed", "known", "path", "reported", "seen", "stale", "table", "text")

    def __init__(self, path: Path, known: int) -> None:
        self.path = path
        self.known = known
        self.computed = 0
        self.text = path[0]
        self.take_table([])

    def take_table(self, table: list[list[int]]) -> None:
        self.table = [list(column) for column in table]
        self.seen = [0] * len(table)
        self.stale: list[set[int]] = [set() for _ in table]
        self.reported: set[tuple[int, int]] = set()


_Place = tuple[_Reader, int, int]  # reader, group, slot


class _Flight:
    """A step that was issued and not completed: what it touches, what it samples, and its faults."""

    __slots__ = ("blocks", "faults", "loads", "number", "rows", "tokens")

    def __init__(self, number: int) -> None:
        self.number = number
        self.blocks: set[int] = set()  # zeroed, copied and exported to
        self.rows: list[tuple[Row, _Reader, list[list[int]]]] = []  # each with the table that it uses
        self.tokens: dict[str, int | list[int]] = {}
        self.loads: list[tuple[Load, list[tuple[int, Content]]]] = []  # each with what it left in which block
        self.faults: list[Fault] = []

    def touches(self, groups: Iterable[Group]) -> set[int]:
        """All blocks that the step reads or writes. O(its tables)."""
        touched = set(self.blocks)
        for row, _, table in self.rows:
            for group in groups:
                column, last = table[group.index], (row.stop - 1) // group.block_size
                if group.kind is Kind.APPEND_ONLY:
                    touched.update(column[: last + 1])
                else:
                    first = (row.start - 1) // group.block_size if row.start else last
                    touched.update(column[first : first + 1], column[last : last + 1])
        return touched - {NULL_BLOCK}


class Device:
    """A worker whose memory holds lineages. Tell it every request (`admit`) and every issued step, in order (`run`)."""

    def __init__(self, geometry: Geometry, forest: Forest) -> None:
        self._groups = geometry.groups
        seen = [(group, forest.keys(group)) for group in geometry.groups]
        self._append_only = [view for view in seen if view[0].kind is Kind.APPEND_ONLY]
        self._states = [view for view in seen if view[0].kind is Kind.STATE]
        self._forest = forest
        self._contents: list[Content] = [UNKNOWN] * geometry.num_blocks
        self._arrivals: dict[str, Request] = {}
        self._readers: dict[str, _Reader] = {}
        self._places: dict[int, set[_Place]] = {}  # block -> the append-only slots of live tables that read it
        self._flights: dict[int, _Flight] = {}
        self._step = _Flight(0)  # the one that runs

    def admit(self, request: Request) -> None:
        """A client sent this request. It starts on the worker with its next row that brings a whole table. By then an
        earlier request of that id has ended, even where no step has told the worker so."""
        self._arrivals[request.id] = request

    def run(self, step: Step) -> list[Fault]:
        """Execute one issued step, in device order. Raises ValueError where a row has not one table per group."""
        self._step = flight = self._flights[step.number] = _Flight(step.number)
        for request in step.finished:
            self._drop_table(self._readers.pop(request, None))
        for request in step.preempted:
            self._drop_table(self._readers.get(request))
        self._zero(step)
        self._copy(step)
        for row in step.rows:
            self._begin(row)
        for load in step.loads:
            self._load(load, step.copies)
        for row, reader, _ in flight.rows:
            self._read_states(row, reader)
        for row, reader, _ in flight.rows:
            self._write(row, reader)
        for checkpoint in step.checkpoints:
            self._export(checkpoint)
        for row, reader, _ in flight.rows:
            self._read_rows(row, reader)
        return flight.faults

    def sampled(self, step: Step) -> dict[str, int | list[int]]:
        """The token of each row that samples, or its right drafts and one more. They come from the request's true text and not
        from what the row read, so that one corruption does not cascade. Raises KeyError where the step is not in flight."""
        return dict(self._flights[step.number].tokens)

    def complete(self, step_number: int) -> None:
        """The step is done. Raises KeyError where it is not in flight."""
        del self._flights[step_number]

    def outside_write(self, blocks: Iterable[int], content: Content = UNKNOWN) -> list[Fault]:
        """A write that is not ordered with the steps (a connector load): the blocks hold `content` then."""
        faults: list[Fault] = []
        targets = set(blocks) - {NULL_BLOCK}
        for number, flight in self._flights.items():
            raced = tuple(sorted(targets & flight.touches(self._groups)))
            if raced:
                what = f"an outside write to blocks {list(raced)} runs beside step {number}, which uses them"
                signature = "outside write, step in flight"
                faults.append(Fault("outside-write-race", what, signature, step=number, blocks=raced))
        for block in targets:
            self._put(block, content)
        return faults

    def spoil(self, step_number: int, request: str) -> None:
        """A request's load had failed that was part of a step in flight. What still holds its bytes holds nothing known."""
        for load, filled in self._flights[step_number].loads:
            for block, content in filled if load.request == request else ():
                if self._contents[block] is content:
                    self._put(block, UNKNOWN)

    def loaded(self, load: Load) -> list[tuple[int, Content]]:
        """What a load leaves in each block that it fills. Raises KeyError where nobody sent its request."""
        reader = self._readers.get(load.request)
        if reader is None or load.request in self._arrivals:
            arrival = self._arrivals[load.request]
            path = self._forest.text(arrival.prompt, arrival.salt)
        else:
            path = reader.path
        return [(block, content) for _, _, block, content, _ in load_contents(load, self._groups, path.__getitem__)]

    @property
    def in_flight(self) -> list[int]:
        """Numbers of the steps that were issued and not completed, oldest first."""
        return list(self._flights)

    @property
    def requests(self) -> set[str]:
        """The requests that the worker knows: they had a row, and no step since said that they ended."""
        return set(self._readers)

    def table(self, request: str) -> list[list[int]]:
        """The worker's block table, one list per group, to look at; no lists for a request that is unknown or preempted."""
        reader = self._readers.get(request)
        return [] if reader is None else reader.table

    def _fault(self, check: str, signature: str, what: str, request: str | None, *blocks: int) -> None:
        self._step.faults.append(Fault(check, what, signature, None, self._step.number, request, blocks))

    def _put(self, block: int, content: Content, writer: _Place | None = None) -> None:
        """Change what a block holds. Every slot that has read it will look again, but for the one that writes."""
        self._contents[block] = content
        for place in self._places.get(block, ()):
            if place != writer:
                reader, group, slot = place
                reader.stale[group].add(slot)

    def _usable(self, block: int, action: str, request: str | None = None) -> bool:
        """Whether an action names a block of the pool other than the null block."""
        self._step.blocks.add(block)
        if 0 < block < len(self._contents):
            return True
        if block == NULL_BLOCK:
            self._fault("null-written", f"{action}, null block", f"a {action} names the null block", request, block)
            if action == "checkpoint":  # nobody reads what is exported there
                self._step.faults[-1].severity = Severity.WASTE
        else:
            check = "copy-batch" if action == "copy" else "table-covers"
            what = f"a {action} names block {block} of a pool of {len(self._contents)}"
            self._fault(check, f"{action}, outside the pool", what, request, block)
        return False

    def _zero(self, step: Step) -> None:
        for block in step.zeroes:
            if self._usable(block, "zero"):
                self._put(block, ZERO)

    def _copy(self, step: Step) -> None:
        if not step.copies:
            return
        pages = [(c.src, c.dst) for c in step.copies if self._usable(c.src, "copy") and self._usable(c.dst, "copy")]
        if step.meaning is Meaning.IN_ORDER:
            for src, dst in pages:
                self._put(dst, self._contents[src])
        else:
            for dst, content in [(dst, self._contents[src]) for src, dst in pages]:
                self._put(dst, content)
        for block, writers in Counter(dst for _, dst in pages).items():
            if writers > 1:
                what = f"{writers} copies of one step write block {block}"
                self._fault("copy-batch", "copy, shared destination", what, None, block)
                self._put(block, UNKNOWN)

    def _load(self, load: Load, copies: Iterable[Copy]) -> None:
        """A loader's stream is not ordered with the copies: where both touch a block, nobody knows what comes of it."""
        filled = [pair for pair in self.loaded(load) if self._usable(pair[0], "load", load.request)]
        for block, content in filled:
            self._put(block, content)
        self._step.loads.append((load, filled))
        targets = {block for block, _ in filled}
        for copy in copies:
            if raced := targets & {copy.src, copy.dst}:
                what = f"the load of {load.request} fills block {min(raced)} of the copy {copy.src}>{copy.dst} of the same step"
                self._fault("outside-write-race", "load, endpoint of a copy", what, load.request, *sorted(raced))
                self._put(copy.dst, UNKNOWN)

    def _begin(self, row: Row) -> None:
        """Bring the table and the text of the row's request up to date, and list the row, unless it cannot run at all."""
        reader = self._readers.get(row.request) if row.table is None else self._replace_table(row.request, row.table)
        if reader is None or not reader.table:
            what = f"{_span(row)} comes without a table, and the worker has none"
            self._fault("table-covers", "row, no table" if reader else "row, unknown request", what, row.request)
            return
        if row.table is None and row.appended is not None:
            for column, blocks in zip(reader.table, row.appended, strict=True):
                if blocks:
                    column.extend(blocks)
        if row.count < 1 or row.start < 0:
            self._fault("row-continues", "row, no tokens", f"{_span(row)} computes nothing", row.request)
            return
        self._grow(row, reader)
        self._step.rows.append((row, reader, reader.table))

    def _grow(self, row: Row, reader: _Reader) -> None:
        """Hold the row against the text, and make that as long as the row needs it: one more where it samples a token."""
        path, stop, right = reader.path, row.stop, 0
        if row.table is None and row.start != reader.computed:
            signature = "row, tokens skipped" if row.start > reader.computed else "row, tokens again"
            what = f"{_span(row)} does not start at {reader.computed}, where the computed tokens ended"
            self._fault("row-continues", signature, what, row.request)
        if stop - row.drafts > reader.known:
            what = f"{_span(row)} goes past its text: prompt and sampled tokens are {reader.known}"
            self._fault("row-continues", "row, past the text", what, row.request)
        if row.drafts:
            right, reader.text = drafted(path[stop - row.drafts], row.drafts)
            stop += right - row.drafts
        reader.computed = stop
        if path.length < stop + row.samples:
            path.upto(stop + row.samples, next_token)
        if row.samples:
            tokens = path.line.tokens
            self._step.tokens[row.request] = tokens[stop + 1 - right : stop + 2] if row.drafts else tokens[stop + 1]
            reader.known = max(reader.known, stop + 1)

    def _replace_table(self, request: str, table: list[list[int]]) -> _Reader | None:
        """The whole table of a new or resumed request. None where nobody sent such a request."""
        if len(table) != len(self._groups):
            raise ValueError(f"{request} brings {len(table)} tables: give one for each of {len(self._groups)} groups")
        self._drop_table(self._readers.get(request))
        arrival = self._arrivals.pop(request, None)
        if arrival is not None:
            self._readers[request] = _Reader(self._forest.text(arrival.prompt, arrival.salt), len(arrival.prompt))
        reader = self._readers.get(request)
        if reader is not None:
            reader.take_table(table)
        return reader

    def _drop_table(self, reader: _Reader | None) -> None:
        if reader is None or not reader.table:
            return
        for group, _ in self._append_only:
            for slot, block in enumerate(reader.table[group.index][: reader.seen[group.index]]):
                if block in self._places:
                    self._places[block].discard((reader, group.index, slot))
        reader.take_table([])

    def _block(self, row: Row, reader: _Reader, group: Group, slot: int) -> int:
        """The block of a slot that the row reads or writes. The null block where it has none, which is a fault once."""
        column = reader.table[group.index]
        if slot < len(column) and 0 < column[slot] < len(self._contents):
            return column[slot]
        if (group.index, slot) not in reader.reported:
            reader.reported.add((group.index, slot))
            block = column[slot] if slot < len(column) else NULL_BLOCK
            why = "past the table" if slot >= len(column) else "outside the pool" if block else "null block"
            what = f"{_span(row)} uses slot {slot} of group {group.index}: {why} ({block})"
            self._fault("table-covers", f"{group.kind} slot, {why}", what, row.request, block)
        return NULL_BLOCK

    def _read_states(self, row: Row, reader: _Reader) -> None:
        start = row.start
        if start == 0:
            return
        text = reader.path.line[start]
        for group, keys in self._states:
            block = self._block(row, reader, group, (start - 1) // group.block_size)
            held, wanted = self._contents[block], keys[text]
            if block and not held.answers(wanted):
                what = f"{row.request} needs state {group.index} after {start} tokens, block {block} holds {held}"
                self._fault("state-ready", f"state, {_reason(held, wanted)}", what, row.request, block)

    def _write(self, row: Row, reader: _Reader) -> None:
        start, stop = row.start, row.stop
        line = reader.text.line if row.drafts else reader.path.line
        for group, keys in self._append_only:
            size = group.block_size
            for slot in range(start // size, (stop - 1) // size + 1):
                block = self._block(row, reader, group, slot)
                if block:
                    key = keys[line[min(stop, (slot + 1) * size)]]
                    self._put(block, key.over(self._contents[block], max(start, slot * size)), (reader, group.index, slot))
        text = reader.path.line[reader.computed]
        for group, keys in self._states:
            block = self._block(row, reader, group, (reader.computed - 1) // group.block_size)
            if block:
                self._put(block, keys[text].content)

    def _export(self, checkpoint: Checkpoint) -> None:
        request, position, block = checkpoint.request, checkpoint.position, checkpoint.block
        for row, reader, _ in self._step.rows:
            if row.request == request and row.start < position < row.stop:
                if self._usable(block, "checkpoint", request):
                    self._put(block, reader.path[position].key(self._groups[checkpoint.group]).content)
                return
        what = f"a checkpoint of {request} after {position} tokens is not inside a chunk of this step"
        self._fault("state-ready", "checkpoint, outside its chunk", what, request, block)

    def _read_rows(self, row: Row, reader: _Reader) -> None:
        for group, keys in self._append_only:
            index, last = group.index, (reader.computed - 1) // group.block_size
            seen, stale = reader.seen[index], reader.stale[index]
            if seen > last and not stale:
                continue
            again = sorted(slot for slot in stale if slot <= last) if stale else []
            stale.difference_update(again)
            reader.seen[index] = max(seen, last + 1)
            for slot in [*again, *range(seen, last + 1)]:
                block = self._block(row, reader, group, slot)
                if block:
                    self._places.setdefault(block, set()).add((reader, index, slot))
                    end = min((slot + 1) * group.block_size, reader.computed)
                    self._read_slot(row, keys[reader.path.line[end]], block)

    def _read_slot(self, row: Row, wanted: Key, block: int) -> None:
        held = self._contents[block]
        if not held.answers(wanted):
            span = f"group {wanted.group.index}, tokens [{wanted.base}, {wanted.lineage.length})"
            what = f"{row.request} reads {span}, block {block} of slot {wanted.slot} holds {held}"
            self._fault("read-lineage", f"attention, {_reason(held, wanted)}", what, row.request, block)


def _span(row: Row) -> str:
    return f"row [{row.start}, {row.stop}) of {row.request}"


def _reason(held: Content, wanted: Key) -> str:
    """Why this content does not answer the key, in words that stay the same from run to run."""
    if isinstance(held, StateAt) and held.group is wanted.group:
        return "one from another position" if _related(held.lineage, wanted.lineage) else "one of another text"
    if isinstance(held, Rows) and held.group is wanted.group:
        if held.runs[0][0] // held.group.block_size != wanted.slot:
            related = _related(held.runs[-1][1], wanted.lineage)
            return "slot holds another position" if related else "slot holds another text"
        at = wanted.base
        for start, wrote in held.runs:
            at = max(at, wrote.length) if start <= at else at
        return "slot partly written" if at < wanted.lineage.length else "slot holds another text"
    return "zeroed" if held is ZERO else "never written" if held is UNKNOWN else "bytes of another group"


def _related(one: Lineage, other: Lineage) -> bool:
    return one.starts_with(other) or other.starts_with(one)
