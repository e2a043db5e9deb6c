"""The vLLM target against the installed vLLM: it drives, it tells the truth about the pool, it refuses what it cannot do."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.audit.test_session import told

from kvproof.audit import session
from kvproof.audit.program import Program
from kvproof.audit.target import Hash, Op, OpKind, Result, TargetCrashed, TargetUnavailable
from kvproof.audit.targets import vllm_build
from kvproof.audit.targets.vllm_pool import VllmPool
from kvproof.audit.targets.vllm_target import VllmTarget
from kvproof.audit.workload import random_program
from kvproof.spec.errors import GeometryError
from kvproof.spec.geometry import Geometry
from kvproof.spec.records import Config, Policy, Removed, Request, Step, Stored

pytestmark = pytest.mark.vllm

SMALL = Geometry.of(16, (64,), unit=16, num_blocks=26)
FINE = Geometry.of(16, (64,), unit=4, num_blocks=40)
PREFIX = tuple(range(1, 97))


class Follower:
    """The pool as the journal tells it."""

    def __init__(self, num_blocks: int) -> None:
        self.refs = [0] * num_blocks
        self.keys: dict[int, list[tuple[int, Hash]]] = {}
        self.tables: dict[str, list[list[int]]] = {}
        self.copies: list[tuple[int, int]] = []

    def follow(self, op: Op) -> None:
        for block, count in op.refs.items():
            self.refs[block] = count
        self.keys.update((block, []) for block in op.taken)
        for block, keys in op.keys:
            self.keys[block] = keys
        for request, table in op.tables.items():
            if table is None:
                self.tables.pop(request, None)
            else:
                self.tables[request] = table
        if op.kind is OpKind.COPIES_OUT:
            self.copies.clear()
        self.copies += op.copies
        if op.free_blocks is not None:
            assert op.free_blocks == self.refs[1:].count(0)


class Client:
    """Drives a target with a full pipeline, follows its journal and checks the worker's tables against it."""

    def __init__(self, target: VllmTarget, config: Config) -> None:
        self.target = target
        self.config = config
        target.reset(config)
        self.follower = Follower(config.geometry.num_blocks)
        self.flights: deque[Step] = deque()
        self.steps: list[Step] = []
        self.ops: list[Op] = []
        self.answers: dict[str, list[int]] = {}
        self.worker: dict[str, list[list[int]]] = {}
        self.finished: list[str] = []

    def follow(self) -> None:
        ops = self.target.journal()
        self.ops += ops
        for op in ops:
            self.follower.follow(op)

    def schedule(self) -> Step:
        step = self.target.schedule()
        self.follow()
        for request in step.finished:
            self.worker.pop(request, None)
        for row in step.rows:
            if row.table is not None:
                self.worker[row.request] = [list(group) for group in row.table]
            else:
                assert row.appended is not None
                for blocks, more in zip(self.worker[row.request], row.appended, strict=True):
                    blocks.extend(more)
        if step.rows or step.copies:
            self.flights.append(step)
            self.steps.append(step)
            assert step.number == len(self.steps)
        return step

    def complete(self) -> Result:
        step = self.flights.popleft()
        tokens = {row.request: 100 + row.stop % 7 for row in step.rows if row.samples}
        result = self.target.complete(step, tokens)
        self.follow()
        for request, accepted in result.accepted.items():
            self.answers.setdefault(request, []).extend(accepted)
        self.finished += result.finished
        return result

    def turn(self) -> Step:
        step = self.schedule()
        while len(self.flights) >= self.config.depth or (self.flights and not step.rows):
            self.complete()
        return step

    def run(self, limit: int = 500) -> None:
        for _ in range(limit):
            if not self.target.busy():
                break
            self.turn()
        while self.flights:
            self.complete()
        self.schedule()  # tells the worker about the last ones that finished
        assert not self.target.busy()

    def agree(self) -> None:
        """The journal and the whole pool say the same; so do the worker's tables where a request runs."""
        seen = self.target.observe()
        assert seen is not None
        assert seen.refs == self.follower.refs
        assert sorted(seen.free_queue) == [block for block, count in enumerate(seen.refs) if block and not count]
        assert seen.tables == self.follower.tables
        assert seen.pending_copies == self.follower.copies
        index: dict[tuple[int, Hash], list[int]] = {}
        for block, keys in self.follower.keys.items():
            for key in keys:
                index.setdefault(key, []).append(block)
        assert {key: sorted(blocks) for key, blocks in seen.index.items()} == {k: sorted(v) for k, v in index.items()}
        assert seen.reverse is not None
        assert {block: sorted(keys, key=str) for block, keys in seen.reverse.items()} == {
            block: sorted(keys, key=str) for block, keys in self.follower.keys.items() if keys
        }

    def quiet(self) -> None:
        """Everything is free and nobody is remembered."""
        seen = self.target.observe()
        assert seen is not None
        assert not any(seen.refs)
        assert len(seen.free_queue) == self.config.geometry.num_blocks - 1
        assert not seen.tables
        assert not seen.deferred
        assert not seen.leftovers


@pytest.fixture(scope="module")
def target() -> VllmTarget:
    return VllmTarget()


@pytest.fixture(params=[(1, False), (2, False), (2, True), (3, True)], ids=["sync", "async", "async-fences", "three-fences"])
def client(request: pytest.FixtureRequest, target: VllmTarget) -> Client:
    depth, fences = request.param
    return Client(target, Config(SMALL, max_batched_tokens=128, depth=depth, fences=fences))


def hybrid(checkpoint: bool) -> Geometry:
    return Geometry.of(32, (32,), unit=8, num_blocks=40, retention=0, checkpoint=checkpoint)


def test_shared_prefixes_run_to_the_end(client: Client) -> None:
    for index in range(4):
        client.target.add(Request(f"r{index}", (*PREFIX, 500 + index, 501, 502), max_tokens=5 + index))
        client.turn()
        client.agree()
    client.run()
    client.agree()
    client.quiet()
    assert sorted(client.finished) == ["r0", "r1", "r2", "r3"]
    assert {name: len(answer) for name, answer in client.answers.items()} == {"r0": 5, "r1": 6, "r2": 7, "r3": 8}
    assert client.worker == {}


def test_a_partial_hit_stages_a_copy(client: Client) -> None:
    client.target.add(Request("first", (*PREFIX, 500), max_tokens=4))
    client.run()
    client.ops.clear()
    client.target.add(Request("second", (*PREFIX, 600, 601), max_tokens=2))
    step = client.schedule()
    allocation = next(op for op in client.ops if op.kind is OpKind.ALLOCATE)
    assert (allocation.hit, allocation.start, allocation.stop) == (96, 96, 98)
    assert [(copy.src, copy.dst) for copy in step.copies] == allocation.copies
    (source, private) = allocation.copies[0]
    assert source in allocation.hits
    assert private in allocation.taken
    assert private == step.rows[0].table[1][1]  # type: ignore[index]
    assert allocation.demand is not None
    assert allocation.demand >= len(allocation.taken)
    assert any(op.kind is OpKind.COPIES_OUT for op in client.ops)
    client.run()
    client.agree()
    client.quiet()


def test_the_producer_moves_its_snapshot(client: Client) -> None:
    client.target.add(Request("a", (*PREFIX, 500), max_tokens=2))
    client.run()
    moved = [op for op in client.ops if op.kind is OpKind.ALLOCATE and op.copies]
    assert len(moved) == 1
    source, private = moved[0].copies[0]
    keys = dict(moved[0].keys)
    assert keys[source] == []
    assert len(keys[private]) == 1
    assert source not in moved[0].taken
    assert private in moved[0].taken


def test_fences_name_steps_that_were_issued(target: VllmTarget) -> None:
    client = Client(target, Config(SMALL, max_batched_tokens=128, depth=2, fences=True))
    client.target.add(Request("a", (*PREFIX, 500), max_tokens=8))
    for _ in range(5):
        client.turn()
    client.target.abort("a")
    client.follow()
    free = next(op for op in client.ops if op.kind is OpKind.FREE)
    assert not free.dropped
    assert free.tables == {"a": None}
    assert [fence for fence, _ in free.deferred] == [client.steps[-1].number]
    seen = target.observe()
    assert seen is not None
    assert seen.deferred == free.deferred
    assert all(seen.refs[block] for _, blocks in free.deferred for block in blocks if block)
    client.run()
    client.agree()
    client.quiet()


@pytest.mark.parametrize("policy", list(Policy))
def test_a_small_pool_preempts(target: VllmTarget, policy: Policy) -> None:
    geometry = replace(SMALL, num_blocks=20)
    client = Client(target, Config(geometry, max_batched_tokens=128, depth=2, policy=policy))
    for index in range(3):
        client.target.add(Request(f"r{index}", tuple(range(index * 100, index * 100 + 60)), 70, priority=-index))
    client.run()
    assert any(step.preempted for step in client.steps)
    resumed = [row for step in client.steps[1:] for row in step.rows if row.table is not None]
    assert len(resumed) > 2
    assert {name: len(answer) for name, answer in client.answers.items()} == {"r0": 70, "r1": 70, "r2": 70}
    client.agree()
    client.quiet()


def test_abort_and_the_same_name_again(client: Client) -> None:
    client.target.add(Request("a", (*PREFIX, 500), max_tokens=30))
    for _ in range(4):
        client.turn()
    client.target.abort("a")
    client.target.add(Request("a", (*PREFIX, 700, 701), max_tokens=3))
    client.follow()
    client.answers.clear()
    client.run()
    assert "a" in {name for step in client.steps for name in step.finished}
    assert client.finished == ["a"]
    assert len(client.answers["a"]) == 3
    client.agree()
    client.quiet()


def test_reset_empties_the_cache(client: Client) -> None:
    client.target.add(Request("a", (*PREFIX, 500), max_tokens=30))
    for _ in range(5):
        client.turn()
    done = client.target.reset_cache()
    client.follow()
    client.agree()
    if done:
        assert client.ops[-1].kind is OpKind.RESET
        seen = client.target.observe()
        assert seen is not None
        assert not seen.index
        assert not any(seen.refs)
    else:
        assert client.config.fences
    client.run()
    assert client.finished == ["a"]
    client.agree()
    client.quiet()


def test_events_name_what_hashes_names(client: Client) -> None:
    client.target.add(Request("a", PREFIX[:65], max_tokens=40))
    client.turn()
    names = client.target.hashes("a")
    assert len(names) == 4
    client.run()
    events = client.target.events()
    stored = [event for event in events if isinstance(event, Stored)]
    assert names == list(stored[0].hashes)
    assert stored[0].parent is None
    assert stored[0].tokens == PREFIX[:64]
    seen = client.target.observe()
    assert seen is not None
    assert {(0, name) for name in names} <= seen.index.keys()
    assert client.target.events() == []
    assert client.target.hashes("a")[:4] == names
    assert client.target.hashes("a", 5) == client.target.hashes("a")[5:]


def test_residency_by_events(target: VllmTarget) -> None:
    client = Client(target, Config(replace(FINE, num_blocks=24), depth=2, max_batched_tokens=96))
    found: dict[tuple[int, Hash], int] = {}
    for index in range(12):
        client.target.add(Request(f"r{index}", tuple(range(index * 7, index * 7 + 90)), max_tokens=6))
    client.run()
    for event in client.target.events():
        if isinstance(event, Stored | Removed):
            for name in event.hashes:
                change = 1 if isinstance(event, Stored) else -1
                found[event.group, name] = found.get((event.group, name), 0) + change
    seen = target.observe()
    assert seen is not None
    assert {key for key, count in found.items() if count} == set(seen.index)


def workload(client: Client, seed: int, turns: int) -> None:
    """Prompts that share prefixes, aborts, resets, an uneven pipeline."""
    rng = random.Random(seed)
    text = [rng.randrange(50) for _ in range(200)]
    alive: list[str] = []
    for turn in range(turns):
        if len(alive) < 5 and rng.random() < 0.5:
            prompt = tuple(text[: rng.randrange(1, 160)]) + tuple(rng.randrange(50) for _ in range(rng.randrange(1, 20)))
            alive.append(f"r{rng.randrange(6)}" if rng.random() < 0.3 else f"s{turn}")
            if alive.count(alive[-1]) > 1:
                alive.pop()
            else:
                client.target.add(Request(alive[-1], prompt, rng.randrange(1, 30), priority=rng.randrange(3)))
        client.schedule()
        while len(client.flights) >= client.config.depth or (client.flights and rng.random() < 0.2):
            finished = client.complete().finished
            alive = [name for name in alive if name not in finished]
        if alive and rng.random() < 0.06:
            client.target.abort(alive.pop(rng.randrange(len(alive))))
            client.follow()
        if rng.random() < 0.02:
            client.target.reset_cache()
            client.follow()
        if turn % 7 == 0:
            client.agree()
    client.run(2000)
    client.agree()
    client.quiet()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("depth", "fences"), [(1, False), (2, False), (2, True)])
def test_journal_and_pool_agree_on_random_workloads(target: VllmTarget, seed: int, depth: int, fences: bool) -> None:
    geometry = [SMALL, FINE, Geometry.of(8, (8,), unit=4, num_blocks=60), Geometry.of(16, num_blocks=16)][seed % 4]
    retention = [None, 0, geometry.scheduler_block][seed % 3]
    geometry = replace(geometry, retention=retention if geometry.states else None)
    policy = list(Policy)[seed % 2]
    config = Config(geometry, max_batched_tokens=64 + 32 * seed, depth=depth, fences=fences, policy=policy)
    workload(Client(target, config), seed, 150)


@pytest.mark.parametrize("seed", range(12))
def test_checks_in_arrears_find_what_checks_at_once_find(
    target: VllmTarget, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = random_program(random.Random(f"arrears/{seed}"))
    program = Program(replace(program.config, junctions=False), program.operations)  # as old releases have none
    late = told(target, program)
    monkeypatch.setattr(session, "ARREARS", 1)
    assert told(target, program) == late


def test_internal_checkpoints_are_derived_from_tables(target: VllmTarget) -> None:
    config = Config(hybrid(checkpoint=True), max_batched_tokens=512)
    try:
        client = Client(target, config)
    except (GeometryError, TargetUnavailable) as error:
        if "checkpoint" not in str(error) or target.release >= "0.32":
            raise  # from then on there are checkpoints, worker and all
        return
    client.target.add(Request("a", tuple(range(109)), max_tokens=3))
    step = client.schedule()
    row = step.rows[0]
    assert (row.start, row.count) == (0, 109)  # one chunk: the boundary inside it is exported
    (made,) = step.checkpoints
    assert (made.request, made.group, made.position) == ("a", 1, 104)
    assert made.block == row.table[1][2]  # type: ignore[index]
    seen = target.observe()
    assert seen is not None
    assert [block for key, blocks in seen.index.items() if key[0] == 1 for block in blocks] == [made.block]
    client.run()
    client.agree()
    client.quiet()


def test_an_inner_chunk_exports_to_the_null_block_under_sparse_retention(target: VllmTarget) -> None:
    """The worker does not know that the scheduler kept no block for it; see `vllm_checkpoints`."""
    try:
        client = Client(target, Config(hybrid(checkpoint=True), max_batched_tokens=64))
    except (GeometryError, TargetUnavailable):
        return  # this release has no checkpoints, as the test above asserts
    client.target.add(Request("a", tuple(range(109)), max_tokens=2))
    client.run()
    assert [(row.start, row.count) for step in client.steps for row in step.rows][:2] == [(0, 64), (64, 45)]
    blocks = [made.block for step in client.steps for made in step.checkpoints]
    assert blocks[0] == 0
    assert blocks[1:] == [client.ops[1].tables["a"][1][2]]  # type: ignore[index]


def test_without_the_inside_view(target: VllmTarget) -> None:
    outside = VllmTarget(inside=False)
    client = Client(target, Config(SMALL))
    client.target.add(Request("a", PREFIX, max_tokens=3))
    client.run()
    outside.reset(Config(SMALL))
    outside.add(Request("a", PREFIX, max_tokens=3))
    steps = []
    while outside.busy():
        steps.append(outside.schedule())
        outside.complete(steps[-1], {row.request: 100 + row.stop % 7 for row in steps[-1].rows if row.samples})
    assert steps == client.steps
    assert outside.journal() == []
    assert outside.observe() is None


@pytest.mark.parametrize(
    ("geometry", "match"),
    [
        (Geometry.of(16, (64, 128), unit=16), "grid of one state block size"),
        (Geometry.of(16, unit=4), "refuses"),
    ],
    ids=["two-state-sizes", "unit-of-one-group"],
)
def test_geometries_that_vllm_does_not_serve(target: VllmTarget, geometry: Geometry, match: str) -> None:
    with pytest.raises(GeometryError, match=match):
        target.reset(Config(geometry))


def test_a_prompt_that_does_not_fit(target: VllmTarget) -> None:
    target.reset(Config(SMALL, max_model_len=64))
    with pytest.raises(GeometryError, match="1 to 63"):
        target.add(Request("a", tuple(range(64)), max_tokens=1))


def test_what_vllm_raises_is_a_crash(target: VllmTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    target.reset(Config(SMALL))
    target.add(Request("a", PREFIX, max_tokens=1))
    pool = target._scheduler.kv_cache_manager.block_pool
    pool.free_block_queue.num_free_blocks = 2  # as if blocks had been lost
    target.add(Request("b", PREFIX, max_tokens=1))
    pool.free_block_queue.fake_free_list_head.next_free_block = pool.free_block_queue.fake_free_list_tail
    pool.free_block_queue.num_free_blocks = 20
    with pytest.raises(TargetCrashed, match=r"Error: .* in vllm/v1/core/\S+:\w+"):
        target.schedule()


@pytest.mark.parametrize(("module", "expected"), [("vllm.v1.core.pool", TargetCrashed), ("kvproof.audit.hook", ValueError)])
def test_whose_fault_it_is_does_not_depend_on_the_folder(module: str, expected: type[Exception]) -> None:
    """A clone is mostly named kvproof, and vLLM is installed inside it."""
    known: dict[str, Any] = {"__name__": module}
    exec(compile("def fails(): raise ValueError", "/a/kvproof/.venv/vllm/v1/core/pool.py", "exec"), known)
    with pytest.raises(expected):
        VllmTarget._guard(known["fails"])


@pytest.fixture
def fresh_load() -> Iterator[Callable[[], Any]]:
    """`load` without what it remembers; what was loaded before comes back afterwards."""
    loaded = vllm_build.load()
    yield vllm_build.load.__wrapped__
    assert vllm_build.load() is loaded


def test_a_missing_vllm_is_one_line(fresh_load: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise vllm_build.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(vllm_build.metadata, "version", missing)
    with pytest.raises(TargetUnavailable, match=r"^vllm is not installed here: run `make fuzz TARGET=vllm`$"):
        fresh_load()


def test_an_import_that_fails_is_one_line(fresh_load: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.v1.core.sched.async_scheduler", None)
    with pytest.raises(TargetUnavailable, match="does not import") as caught:
        fresh_load()
    assert "\n" not in str(caught.value)


def test_a_changed_signature_is_one_line(fresh_load: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pool = vllm_build.load().get("pool", "BlockPool")
    monkeypatch.setattr(pool, "touch", lambda self, block: None)
    with pytest.raises(TargetUnavailable, match=r"BlockPool\.touch takes no blocks"):
        fresh_load()
    monkeypatch.delattr(vllm_build.load().get("manager", "KVCacheManager"), "take_kv_cache_block_copies")
    monkeypatch.undo()
    monkeypatch.delattr(pool, "move_block_hashes")
    with pytest.raises(TargetUnavailable, match=r"has no BlockPool\.move_block_hashes"):
        fresh_load()


def test_a_block_that_is_freed_twice_is_seen() -> None:
    """The third entry of the museum: random operations of a pool find it."""
    assert any(broken(VllmPool(num_blocks=6), random.Random(seed)) for seed in range(20))


def broken(pool: VllmPool, rng: random.Random) -> bool:
    held: list[int] = []
    for _ in range(30):
        choice = rng.randrange(3)
        if choice == 0 and pool.observe().free_queue:
            held += pool.take(1)
        elif choice == 1 and held:
            pool.free([rng.choice(held)])
        elif held:
            pool.hit(rng.choice(held))
        seen = pool.observe()
        if min(seen.refs) < 0 or any(seen.refs[block] for block in seen.free_queue):
            return True
    return False


def test_a_pool_that_is_used_well_stays_right() -> None:
    pool = VllmPool(num_blocks=8, unit=4)
    first, second = pool.take(2)
    pool.key([first, second], range(8), 0, 2)
    pool.free([second, first])
    seen = pool.observe()
    assert seen.free_queue[-2:] == [second, first]
    assert len(seen.index) == 2
    pool.hit(first)
    assert pool.observe().refs[first] == 1
    pool.free([first])
    assert pool.take(7)[-1] == first
    assert not pool.observe().index


def test_partial_keys_move_with_their_copy() -> None:
    pool = VllmPool(num_blocks=8, unit=4, block_size=8)
    source, private = pool.take(2)
    pool.key_partial(source, range(12), 4)
    (before,) = pool.observe().index.items()
    pool.move(source, private)
    (after,) = pool.observe().index.items()
    assert before == (after[0], [source])
    assert after[1] == [private]
