"""The policies of the specification beside the functions of vLLM that they restate, asked the same questions.

Questions are drawn from fixed seeds. Where releases of vLLM answer otherwise, a table says which of them do, and where:
nothing may differ outside of its lines, and each line that names the installed release must be needed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from inspect import signature
from typing import Any

import pytest

from kvproof.audit.targets import vllm_build
from kvproof.audit.targets.vllm_build import known, parameters
from kvproof.spec import copies
from kvproof.spec.chunks import checkpoint_position, grid, next_chunk, prefill_end
from kvproof.spec.demand import Ask, demand, total_demand
from kvproof.spec.geometry import Geometry, Kind
from kvproof.spec.hashing import digests
from kvproof.spec.lineage import Forest, Path
from kvproof.spec.lookup import common_hit, hit_keys
from kvproof.spec.records import Config, Copy, Meaning, Request

pytestmark = pytest.mark.vllm

VLLM = vllm_build.load()
Release = tuple[int, int]
RELEASE: Release = tuple(map(int, VLLM.release.split(".")[:2]))  # type: ignore[assignment]

CHECKPOINTS = "prefill_checkpoint_alignment" in parameters(VLLM.get("interface", "MambaSpec"))
NO_CHECKPOINTS = f"vllm {VLLM.release}: MambaSpec has no prefill_checkpoint_alignment, so no chunk exports an inner state"
# The scheduler's switch for states at junctions inside a block. Without a draft model it stays off: set by hand here.
EXACT_JUNCTIONS = next(
    (
        name
        for name in ("mamba_shared_prefix_checkpoint", "mamba_fine_grained_prefix_cache")
        if f"enable_{name}" in parameters(VLLM.get("config", "CacheConfig"))
    ),
    None,
)


# Chunks: `next_chunk` and Scheduler._mamba_block_aligned_split.


@dataclass(frozen=True, slots=True)
class Question:
    """The arguments of `next_chunk` after the configuration, in tokens."""

    start: int
    wanted: int
    prompt: int
    length: int
    junction: int = 0

    @property
    def end(self) -> int:
        return self.start + self.wanted


def sizes(block: int, unit: int, budget: int, *, checkpoint: bool = False) -> Config:
    """One block size for all groups, as vLLM's own configuration makes it."""
    return Config(Geometry.of(block, (block,), unit=unit, checkpoint=checkpoint), max_batched_tokens=budget)


@cache
def engine_of(config: Config) -> Any:
    engine = vllm_build.scheduler(config)
    if EXACT_JUNCTIONS is not None:
        setattr(engine, EXACT_JUNCTIONS, config.junctions and config.geometry.fine)
    return engine


requests_of = cache(vllm_build.Requests)  # by unit


def real_chunk(config: Config, question: Question) -> int:
    """What the real scheduler makes of `wanted`."""
    request = requests_of(config.geometry.unit).make(Request("r", (0,) * question.prompt, 100), "r")
    request.append_output_token_ids([0] * (question.length - question.prompt))
    request.num_computed_tokens = question.start
    request.shared_prefix_boundary = question.junction
    count: int = engine_of(config)._mamba_block_aligned_split(request, question.wanted)
    return count


def spec_chunk(config: Config, question: Question) -> int:
    return next_chunk(config, question.start, question.wanted, question.prompt, question.length, junction=question.junction)


def position(config: Config, start: int, stop: int, prompt: int, length: int) -> int:
    """`checkpoint_position` as an engine of this configuration asks it; 0 where its groups export nothing."""
    geometry, block = config.geometry, grid(config.geometry)
    unit = geometry.unit if geometry.fine else block
    exporting = all(group.checkpoint for group in geometry.states)
    return checkpoint_position(start, stop, prompt, length, block=block, unit=unit) if exporting else 0


def exports(config: Config, question: Question) -> bool:
    """Whether the chunk would export an inner state if it took all that it wants."""
    return position(config, question.start, question.end, question.prompt, question.length) > 0


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the releases from `first` to `last` cut otherwise, and an example: `spec` tokens here, `real` there."""

    first: Release
    last: Release
    what: str
    where: Callable[[Config, Question], bool]
    config: Config
    question: Question
    spec: int
    real: int

    def __str__(self) -> str:
        return f"{self.first[0]}.{self.first[1]} to {self.last[0]}.{self.last[1]}: {self.what}"


CHUNK_DIFFERENCES = (
    Difference(
        (0, 26),
        (0, 26),
        "a block wider than any step is never crossed: the request waits",
        lambda config, question: grid(config.geometry) > config.max_batched_tokens,
        sizes(6, 3, budget=4),
        Question(start=0, wanted=4, prompt=7, length=7),
        spec=4,
        real=0,
    ),
    Difference(
        (0, 26),
        (0, 26),
        "behind the last block boundary of the text a chunk may end anywhere",
        lambda config, question: (
            question.length // grid(config.geometry) * grid(config.geometry)
            <= question.end
            < prefill_end(question.prompt, question.length)
        ),
        sizes(16, 4, budget=17),
        Question(start=2, wanted=6, prompt=9, length=9),
        spec=0,
        real=6,
    ),
    Difference(
        (0, 26),
        (0, 31),
        "a text that fills its last block is computed to its end, with no stop one block before",
        lambda config, question: question.length % grid(config.geometry) == 0,
        sizes(4, 4, budget=24),
        Question(start=0, wanted=12, prompt=12, length=12),
        spec=8,
        real=12,
    ),
    Difference(
        (0, 26),
        (0, 31),
        "a prompt that ends with a whole unit is computed to its end, with no stop one unit before",
        lambda config, question: config.geometry.fine and question.prompt % config.geometry.unit == 0,
        sizes(16, 4, budget=17),
        Question(start=0, wanted=12, prompt=12, length=12),
        spec=8,
        real=12,
    ),
    Difference(
        (0, 30),
        (0, 33),
        "a chunk with a checkpoint and a junction on its way stops for the junction only, not on the grid",
        lambda config, question: exports(config, question) and question.start < question.junction <= question.end,
        sizes(10, 2, budget=40, checkpoint=True),
        Question(start=8, wanted=20, prompt=27, length=28, junction=22),
        spec=2,
        real=10,
    ),
)
IN_THIS_RELEASE = [line for line in CHUNK_DIFFERENCES if line.first <= RELEASE <= line.last]


def chunk_configs(count: int, *, checkpoint: bool | None = None) -> Iterator[tuple[random.Random, Config]]:
    """Geometries as vLLM's own configuration yields them: all state blocks equal, no other block longer."""
    for seed in range(count):
        rng = random.Random(seed)
        unit, units = rng.randint(1, 4), rng.randint(1, 5)
        append_only = unit * rng.choice([n for n in range(1, units + 1) if units % n == 0])
        exporting = rng.random() < 0.5 if checkpoint is None else checkpoint
        geometry = Geometry.of(
            append_only, (unit * units,) * rng.randint(1, 2), unit=unit, checkpoint=CHECKPOINTS and exporting
        )
        junctions = EXACT_JUNCTIONS is not None and rng.random() < 0.5
        yield rng, Config(geometry, max_batched_tokens=rng.randint(1, 40), junctions=junctions)


def questions(rng: random.Random, config: Config, count: int) -> Iterator[Question]:
    unit, block, widest = config.geometry.unit, grid(config.geometry), config.max_batched_tokens
    for _ in range(count):
        prompt = rng.randint(1, 70)
        length = prompt + rng.choice([0, 0, 1, 2, 7, 30])
        grain = rng.choice([1, unit, unit, block])
        start = rng.randint(0, length - 1) // grain * grain
        most = min(widest, length - start)
        wanted = most if rng.random() < 0.6 else rng.randint(1, most)
        last = (length - 1) // unit
        junction = rng.choice([0, rng.randint(0, last) * unit, rng.randint(start // unit, last) * unit])
        yield Question(start, wanted, prompt, length, junction)


def test_chunks_are_those_of_the_real_scheduler() -> None:
    seen: Counter[str] = Counter()
    lines: Counter[tuple[str, ...]] = Counter()
    for rng, config in chunk_configs(160):
        for question in questions(rng, config, 60):
            mine, real = spec_chunk(config, question), real_chunk(config, question)
            reasons = tuple(str(line) for line in IN_THIS_RELEASE if line.where(config, question))
            assert mine == real or reasons, (config, question, mine, real)
            if mine != real:
                lines[reasons] += 1
            seen["waits"] += real == 0
            seen["cut"] += 0 < real < question.wanted
            seen["inside a block"] += real > 0 and (question.start + real) % grid(config.geometry) > 0
        engine_of.cache_clear()
    assert set(seen) == {"waits", "cut", "inside a block"}
    assert min(seen.values()) > 500
    for line in IN_THIS_RELEASE:
        assert lines[(str(line),)], f"no question needs this line alone: {line}"


@pytest.mark.parametrize("line", CHUNK_DIFFERENCES, ids=lambda line: " ".join(line.what.split()[:6]))
def test_the_examples_of_the_differences(line: Difference) -> None:
    """Outside of the releases that a line names, its example is answered as here."""
    if line.config.geometry.states[0].checkpoint and not CHECKPOINTS:
        pytest.skip(NO_CHECKPOINTS)
    assert spec_chunk(line.config, line.question) == line.spec
    assert real_chunk(line.config, line.question) == (line.real if line in IN_THIS_RELEASE else line.spec)


def test_a_checkpoint_chunk_with_a_junction_stops_for_the_junction_only() -> None:
    """In vLLM. Here it stops on the grid, too, as any other chunk: the first stop is never behind the junction.

    An inexact junction is rounded down by whole blocks from `start`: from inside a block vLLM's stop is inside one, too.
    """
    if not CHECKPOINTS:
        pytest.skip(NO_CHECKPOINTS)
    starts: Counter[str] = Counter()
    for rng, config in chunk_configs(400, checkpoint=True):
        block = grid(config.geometry)
        for question in questions(rng, config, 60):
            if not (exports(config, question) and question.start < question.junction <= question.end):
                continue
            start, junction = question.start, question.junction
            kept = config.junctions and config.geometry.fine and junction <= question.prompt
            stop = junction if kept else start + (junction - start) // block * block
            expected = stop - start if junction < question.end and start < stop else question.wanted
            real = real_chunk(config, question)
            assert real == expected, (config, question)
            assert spec_chunk(config, question) <= real, (config, question)
            where = "inside a block" if start % block else "on the grid"
            starts[where] += spec_chunk(config, question) < real
            starts[f"{where}, to the inside"] += real < question.wanted and not kept and (start + real) % block > 0
        engine_of.cache_clear()
    assert starts["on the grid"] > 20
    assert starts["inside a block"] > 20
    assert starts["inside a block, to the inside"] > 20
    assert not starts["on the grid, to the inside"]


def test_the_chunks_of_the_documented_example() -> None:
    config = replace(sizes(512, 32, budget=8192), max_model_len=16384)
    chunks: list[int] = []
    while (done := sum(chunks)) < 10_000:
        chunks.append(real_chunk(config, Question(done, min(8192, 10_000 - done), 10_000, 10_000)))
    assert chunks == [8192, 1536, 256, 16]


def test_a_longer_block_of_another_group_is_no_grid_to_vllm() -> None:
    """Hits end at multiples of 8 here, and still vLLM ends chunks at multiples of 4. Its own configuration makes both equal."""
    config = Config(Geometry.of(8, (4,), unit=4), max_batched_tokens=12)
    question = Question(start=0, wanted=12, prompt=41, length=41)
    assert not config.geometry.fine
    assert spec_chunk(config, question) == 8
    assert real_chunk(config, question) == 12


# Lookup: `common_hit`, `hit_keys` and KVCacheCoordinator.find_longest_cache_hit.


def manager_of(geometry: Geometry) -> Any:
    make = VLLM.get("manager", "KVCacheManager")
    return make(
        **known(
            make.__init__,
            kv_cache_config=vllm_build.kv_cache_config(geometry),
            max_model_len=64,
            scheduler_block_size=geometry.scheduler_block,
            hash_block_size=geometry.unit,
            enable_caching=True,
        )
    )


def test_hits_are_those_of_the_real_coordinator() -> None:
    """For any set of keys, also for those that no engine would leave: length, junction, and every block of every table."""
    with_group = VLLM.get("utils", "make_block_hash_with_group_id")
    seen: Counter[str] = Counter()
    for seed in range(200):
        rng = random.Random(seed)
        unit = rng.randint(1, 3)
        states = tuple(unit * rng.randint(1, 4) for _ in range(rng.randint(1, 3)))
        geometry = Geometry.of(unit * rng.randint(1, 4), states, unit=unit, num_blocks=200)
        manager = manager_of(geometry)
        assert manager.coordinator.enable_partial_hash_hits == geometry.fine
        index = manager.block_pool.cached_block_hash_to_block
        for number in range(25):
            text = tuple(range(1000 * number, 1000 * number + rng.randint(2, 40)))  # hits nothing of the texts before
            request = requests_of(unit).make(Request("r", text, 1), "r")
            path, most = Path(Forest().root(), text), len(text) - 1
            blocks, share = iter(manager.block_pool.blocks[1:]), rng.choice([0.3, 0.6, 0.9, 0.97])
            found = {}
            for group in geometry.groups:
                for end in range(unit, len(text) + 1, unit):
                    if rng.random() < share:
                        block = next(blocks)
                        index.insert(with_group(request.block_hashes[end // unit - 1], group.index), block)
                        found[path[end].key(group)] = block.block_id
            tables, length, uncached = manager.coordinator.find_longest_cache_hit(request.block_hashes, most)
            hit = common_hit(found.get, path, geometry)
            assert (length, length + uncached if uncached else 0) == (hit.length, hit.junction), (geometry, len(text), found)
            for group, table in zip(geometry.groups, tables, strict=True):
                keys = hit_keys(found.get, path, group, unit, length, most)
                assert [block.block_id for block in table] == [found[key] if key else 0 for key in keys]
            seen["hit"] += length > 0
            seen["coarse hit"] += length > 0 and not geometry.fine
            seen["inner hit"] += length % geometry.groups[0].block_size > 0
            seen["junction"] += uncached > 0
    assert seen.keys() == {"hit", "coarse hit", "inner hit", "junction"}
    assert min(seen.values()) > 100


# Demand: `demand` and get_num_blocks_to_allocate of each group's manager, while the real scheduler serves requests.


@dataclass(frozen=True, slots=True)
class Answer:
    """What a manager was asked, and its answer.

    exported: the inner position whose state the manager allocates for. expected: where the scheduler's cut expects one.
    ends: where the request's prefill does.
    """

    ask: Ask
    real: int
    exported: int
    expected: int
    dense: bool
    ends: int


class Demands:
    """A real scheduler whose managers and coordinator are listened to."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.engine = vllm_build.scheduler(config)
        self.answers: list[Answer] = []
        self._requests = requests_of(config.geometry.unit)
        self._answer = VLLM.get("outputs", "ModelRunnerOutput")
        coordinator = self.engine.kv_cache_manager.coordinator
        for manager in coordinator.single_type_managers:
            self._listen(manager)
        self._listen_to_the_sum(coordinator)

    def add(self, request: Request) -> None:
        self.engine.add_request(self._requests.make(request, request.id))

    def step(self, rng: random.Random) -> None:
        output = self.engine.schedule()
        ids = list(output.num_scheduled_tokens)
        sampled = [[] if self.engine.requests[name].is_prefill_chunk else [rng.randint(0, 1)] for name in ids]
        numbers = {name: number for number, name in enumerate(ids)}
        answer = self._answer(req_ids=ids, req_id_to_index=numbers, sampled_token_ids=sampled)
        self.engine.update_from_output(output, answer)

    def _listen(self, manager: Any) -> None:
        real = manager.get_num_blocks_to_allocate
        form = signature(real)

        def get_num_blocks_to_allocate(*args: Any, **options: Any) -> int:
            asked = form.bind(*args, **options).arguments
            answer = self._prepared(manager, asked)
            count: int = real(*args, **options)
            if not asked.get("apply_admission_cap"):  # else a first look at the whole text
                exported, _ = getattr(manager, "_checkpoints", {}).get(asked["request_id"], (0, 0))
                self.answers.append(replace(answer, real=count, exported=exported))
            return count

        manager.get_num_blocks_to_allocate = get_num_blocks_to_allocate

    def _prepared(self, manager: Any, asked: dict[str, Any]) -> Answer:
        """The answer but for what only the real function knows."""
        geometry, request = self.config.geometry, self.engine.requests[asked["request_id"]]
        group = geometry.groups[manager.kv_cache_group_id]
        state = group.kind is Kind.STATE
        table = manager.req_to_blocks.get(request.request_id, ())
        start, stop, hits = asked["num_local_computed_tokens"], asked["num_tokens_main_model"], asked["new_computed_blocks"]
        prompt, length = request.num_prompt_tokens, request.num_tokens
        ends = prefill_end(prompt, length)
        any_chunk = geometry.retention is None or "prefill_end" not in asked
        ask = Ask(
            group,
            held=len(table),
            start=start,
            stop=stop,
            hits=len(hits),
            unheld=sum(not block.ref_cnt and not block.is_null for block in hits),
            snapshot=state and start % group.block_size > 0 and len(table) > 0 and table[-1].block_hash is not None,
            checkpoint=state and (any_chunk or stop >= ends) and position(self.config, start, stop, stop, stop) > 0,
        )
        expected = position(self.config, start, stop, prompt, length) if state else 0
        return Answer(ask, real=0, exported=0, expected=expected, dense=geometry.retention is None, ends=ends)

    def _listen_to_the_sum(self, coordinator: Any) -> None:
        real = coordinator.get_num_blocks_to_allocate

        def get_num_blocks_to_allocate(*args: Any, **options: Any) -> int:
            before = len(self.answers)
            count: int = real(*args, **options)
            if answers := self.answers[before:]:
                assert count == sum(answer.real for answer in answers)
                if all(answer.real == demand(answer.ask) for answer in answers):
                    assert count == total_demand(answer.ask for answer in answers)
            return count

        coordinator.get_num_blocks_to_allocate = get_num_blocks_to_allocate


@cache
def demands() -> list[Answer]:
    """What the managers of many schedulers answered, for texts that share prefixes and pools that are too small for them."""
    answers: list[Answer] = []
    for seed in range(40):
        rng = random.Random(seed)
        unit, units = rng.choice([1, 2, 4]), rng.choice([1, 2, 4])
        geometry = Geometry.of(
            unit * rng.choice([n for n in (1, 2, 4) if units % n == 0]),
            (unit * units,) * rng.randint(1, 2),
            unit=unit,
            num_blocks=rng.randint(24, 70),
            retention=rng.choice([0, None]),
            checkpoint=CHECKPOINTS and rng.random() < 0.5,
        )
        engine = Demands(Config(geometry, max_batched_tokens=rng.choice([8, 16, 32, 64]), max_model_len=256, max_seqs=6))
        texts = [tuple(rng.randint(0, 3) for _ in range(90)) for _ in range(2)]
        for number in range(80):
            if rng.random() < 0.5:
                prompt = rng.choice(texts)[: rng.randint(1, 60)] + (0, 1, 0, 1)[: rng.randint(0, 4)]
                engine.add(Request(f"r{number}", prompt, max_tokens=rng.randint(1, 16)))
            engine.step(rng)
        answers += engine.answers
    return answers


def missing(ask: Ask) -> int:
    """Table slots that the allocation adds, null gaps included."""
    return max(ask.group.blocks_for(ask.stop) - ask.held - ask.hits, 0)


def one_more_for_a_copy(ask: Ask) -> int:
    return int(ask.group.kind is Kind.STATE and (ask.partial or ask.snapshot) and not missing(ask))


def gaps_of_a_running_request(ask: Ask) -> int:
    return missing(ask) - 2 if ask.checkpoint and ask.held else 0


# Releases from the first to the last one named ask for this much more than `demand`.
DEMAND_DIFFERENCES = (
    ((0, 26), (0, 30), "a copy counts twice where no slot is missing", one_more_for_a_copy),
    ((0, 30), (0, 30), "a running request that exports counts null gaps as blocks", gaps_of_a_running_request),
)


def test_demand_is_that_of_the_real_managers() -> None:
    seen: Counter[str] = Counter()
    lines = {what: more for first, last, what, more in DEMAND_DIFFERENCES if first <= RELEASE <= last}
    for answer in demands():
        ask = answer.ask
        more = {what: count for what, excess in lines.items() if (count := excess(ask))}
        assert answer.real == demand(ask) + sum(more.values()), answer
        seen.update(more.keys())
        seen[ask.group.kind] += answer.real > 0
        seen["unheld"] += ask.unheld > 0
        seen["partial"] += ask.partial
        seen["snapshot"] += ask.snapshot
        seen["checkpoint"] += ask.checkpoint
    assert all(seen[name] > 20 for name in (*Kind, "unheld", "partial", "snapshot", *lines)), seen
    assert (seen["checkpoint"] > 20) == CHECKPOINTS


def test_checkpoints_are_allocated_where_the_chunk_exports_them() -> None:
    """The scheduler cuts for a checkpoint at the end of prefill (`checkpoint_position`), the managers allocate for one at
    the end of the chunk. The two part where a resumed text runs one token past its prefill and that token starts a unit.
    With dense retention, and to 0.30 with any, chunks before the last one export as well."""
    if not CHECKPOINTS:
        pytest.skip(NO_CHECKPOINTS)
    seen: Counter[str] = Counter()
    for answer in demands():
        ask = answer.ask
        assert (answer.exported > 0) == ask.checkpoint, answer
        if ask.stop < answer.ends:
            assert answer.expected == 0
            seen["before the last"] += ask.checkpoint
            assert not ask.checkpoint or answer.dense or RELEASE <= (0, 30), answer
        elif answer.exported != answer.expected:
            assert ask.stop == answer.ends + 1, answer
            assert answer.exported == answer.ends, answer
            seen["past the prefill"] += 1
        else:
            seen["same"] += ask.checkpoint
    assert min(seen[name] for name in ("same", "before the last", "past the prefill")) > 0, seen
    assert seen["same"] > 100


# Copies: `copies.apply` and copy_kv_cache_blocks_inplace, as the worker calls it before the forward pass of a step.

NUM_BLOCKS, PAGE = 12, 16  # bytes per block and layer


def separate() -> list[Any]:
    """Each layer has its own allocation; one of them of another type."""
    torch = import_module("torch")
    return [torch.zeros(NUM_BLOCKS, PAGE, dtype=torch.int8), torch.zeros(NUM_BLOCKS, PAGE // 4, dtype=torch.float32)]


def block_outermost() -> list[Any]:
    """One allocation in which a block's bytes of all layers are next to each other."""
    torch = import_module("torch")
    return list(torch.zeros(NUM_BLOCKS, 3, PAGE, dtype=torch.int8).unbind(1))


def layer_outermost() -> list[Any]:
    """One allocation, layer after layer."""
    torch = import_module("torch")
    return list(torch.zeros(3, NUM_BLOCKS, PAGE, dtype=torch.int8).unbind(0))


Layout = Callable[[], list[Any]]
LAYOUTS = (separate, block_outermost, layer_outermost)


def copied(layout: Layout, batch: Sequence[Copy]) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """The bytes of all layers, by block, before and after the real function ran the batch."""
    torch, utils = import_module("torch"), import_module("vllm.v1.worker.utils")
    layers = layout()
    rng = random.Random(0)
    for layer in layers:
        data = torch.tensor(list(rng.randbytes(NUM_BLOCKS * PAGE)), dtype=torch.uint8).view(NUM_BLOCKS, PAGE)
        layer.view(torch.uint8).copy_(data)
    before = pages(layers)
    make = VLLM.get("utils", "KVCacheBlockCopy")
    utils.copy_kv_cache_blocks_inplace(layers, NUM_BLOCKS, [make(copy.src, copy.dst) for copy in batch])
    return before, pages(layers)


def pages(layers: list[Any]) -> dict[int, bytes]:
    torch = import_module("torch")
    rows = [layer.contiguous().view(torch.uint8).view(NUM_BLOCKS, PAGE).tolist() for layer in layers]
    return {block: b"".join(bytes(layer[block]) for layer in rows) for block in range(NUM_BLOCKS)}


def needs(layout: Layout) -> None:
    """Skip where a release takes every allocation for block-major (to 0.28): it also takes lists of tensors for a layer."""
    taken = str(signature(import_module("vllm.v1.worker.utils").copy_kv_cache_blocks_inplace).parameters["kv_caches"])
    if layout is layer_outermost and "list[" in taken:
        pytest.skip(f"vllm {VLLM.release}: copy_kv_cache_blocks_inplace takes `{taken}` and copies whole storages by block")


def batches(count: int) -> Iterator[list[Copy]]:
    for seed in range(count):
        rng = random.Random(seed)
        written = rng.sample(range(1, NUM_BLOCKS), rng.randint(1, 8))
        batch = [Copy(rng.choice([b for b in range(1, NUM_BLOCKS) if b != dst]), dst) for dst in written]
        copies.validate(batch, NUM_BLOCKS)
        yield batch


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_of_copies_is_simultaneous(layout: Layout) -> None:
    needs(layout)
    seen: Counter[str] = Counter()
    for batch in batches(300):
        before, after = copied(layout, batch)
        assert after == copies.apply(before, batch, Meaning.SIMULTANEOUS), batch
        assert after == copies.run(before, copies.plan(copies.resolve(batch, Meaning.SIMULTANEOUS)), zero=b""), batch
        assert (after == copies.apply(before, batch, Meaning.IN_ORDER)) == copies.same_meaning(batch), batch
        pairs = {(copy.src, copy.dst) for copy in batch}
        seen["chain"] += any(later.src == copy.dst for n, copy in enumerate(batch) for later in batch[n + 1 :])
        seen["swap"] += any((dst, src) in pairs for src, dst in pairs)
        seen["one meaning"] += copies.same_meaning(batch)
    assert seen.keys() == {"chain", "swap", "one meaning"}
    assert min(seen.values()) > 20


A, B, C = 1, 2, 3


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("batch", "came_from", "in_order"),
    [
        ([Copy(A, B), Copy(B, C)], {B: A, C: B}, {B: A, C: A}),
        ([Copy(B, C), Copy(A, B)], {B: A, C: B}, {B: A, C: B}),
        ([Copy(A, B), Copy(B, A)], {B: A, A: B}, {B: A, A: A}),
        ([Copy(A, B), Copy(B, C), Copy(C, A)], {B: A, C: B, A: C}, {B: A, C: A, A: A}),
        ([Copy(A, B), Copy(A, C)], {B: A, C: A}, {B: A, C: A}),
    ],
    ids=["chain", "chain, reader first", "swap", "cycle", "fan-out"],
)
def test_what_a_block_holds_after_the_copies(
    layout: Layout, batch: list[Copy], came_from: dict[int, int], in_order: dict[int, int]
) -> None:
    """A scheduler that puts a > b and b > c in one step, and means the new bytes of b, corrupts c: the worker reads the old
    ones, whatever the order of the list."""
    needs(layout)
    before, after = copied(layout, batch)
    assert after == before | {dst: before[src] for dst, src in came_from.items()}
    assert copies.apply(before, batch, Meaning.SIMULTANEOUS) == after
    assert copies.apply(before, batch, Meaning.IN_ORDER) == before | {dst: before[src] for dst, src in in_order.items()}
    assert (came_from == in_order) == copies.same_meaning(batch)


# Hashing: `digests` and get_request_block_hasher, BlockHashListWithBlockSize.


@pytest.mark.parametrize("unit", [1, 2, 3, 4])
def test_names_are_those_of_vllm_at_every_size(unit: int) -> None:
    """Not the same bytes, but the same names: equal where the other side's are equal, at every size, and as the text grows."""
    real_view = VLLM.get("utils", "BlockHashListWithBlockSize")
    requests, rng = requests_of(unit), random.Random(unit)
    name_of: dict[Any, bytes] = {}
    hash_of: dict[bytes, Any] = {}
    shared = 0
    for _ in range(60):
        salt = rng.choice([None, "salt", "pepper"])
        text = [rng.randint(0, 1) for _ in range(rng.randint(1, 12))]
        request = requests.make(Request("r", tuple(text), 100, salt=salt), "r")
        views = [(n, real_view(request.block_hashes, unit, unit * n)) for n in (1, 2, 3, 4)]
        for more in ([], [rng.randint(0, 1)], [rng.randint(0, 1) for _ in range(rng.randint(0, 9))]):
            text += more
            request.append_output_token_ids(more)
            names = digests(text, unit, salt)
            for name, block_hash in zip(names[1:], request.block_hashes, strict=True):
                shared += name in hash_of
                assert name_of.setdefault(block_hash, name) == name
                assert hash_of.setdefault(name, block_hash) == block_hash
            for n, view in views:
                assert names[n::n] == [name_of[view[index]] for index in range(len(view))]
    assert shared > 100
    assert len(name_of) == len(hash_of) > 100
