"""Replay of a KV event stream: what a listener believes can be found, and where the stream lies to it.

A listener (a prefix-aware router, another tier of the cache) sees only the events. `Residency` does what it would do.

Seen in BlockPool (vllm/v1/core/block_pool.py), 0.26 to 0.32: each block that goes under a hash is announced once and
each that leaves is taken back once, also where several blocks share a hash, so counts are numbers of blocks. A move of
hashes to a copy (`move_block_hashes`) says nothing and changes no count; a block that is under the hash already is not
announced again. The exception is `emit_cached_block_events`, which repeats hits to requests that ask for a full report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from kvproof.spec.faults import Fault
from kvproof.spec.geometry import Group
from kvproof.spec.records import Event, Removed, Stored

Entry = tuple[int, object]  # group, hash


class Residency:
    """Number of blocks under each (group, hash), by the events alone. Feed them in order; a Cleared starts anew.

    groups: of the engine, where they are known: then the signature of a fault says which kind of entry it is about.
    """

    def __init__(self, groups: Sequence[Group] = ()) -> None:
        self._groups = groups
        self._blocks: dict[Entry, int] = {}
        self._announced: set[object] = set()  # hashes, since the last Cleared
        self._told: set[str] = set()  # signatures

    def blocks(self, group: int, digest: object) -> int:
        """How many blocks of the group can be found under this hash."""
        return self._blocks.get((group, digest), 0)

    def consume(self, events: Iterable[Event], step: int = 0) -> list[Fault]:
        """Take events in. `step` is where the faults say they happened. What is odd about a Stored event is told once."""
        faults: list[Fault] = []
        blocks, announced = self._blocks, self._announced
        for event in events:
            if isinstance(event, Stored):
                if event.parent is not None and event.parent not in announced and event.hashes:
                    faults += self._tell(event, "event-parent", "stored, unknown parent", _orphan)
                if shape := _shape(event):
                    faults += self._tell(event, "event-shape", shape, _misfit)
                for digest in event.hashes:
                    entry = event.group, digest
                    blocks[entry] = blocks.get(entry, 0) + 1
                announced.update(event.hashes)
            elif isinstance(event, Removed):
                faults += self._remove(event)
            else:
                blocks.clear()
                announced.clear()
        for fault in faults:
            fault.step = step
        return faults

    def compare(self, index: Mapping[Entry, int], step: int = 0) -> list[Fault]:
        """Hold the replay against the engine's own index: number of blocks by (group, hash). O(index).

        One fault for each way to differ, with an example. The replay goes on from the index, so that a difference is
        found once.
        """
        truth = {entry: blocks for entry, blocks in index.items() if blocks}
        heard, self._blocks = self._blocks, truth
        if heard == truth:
            return []
        faults = []
        for signature, surplus in (
            ("index, more blocks than announced", Counter(truth) - Counter(heard)),
            ("index, fewer blocks than announced", Counter(heard) - Counter(truth)),
        ):
            if surplus:
                group, digest = example = next(iter(surplus))
                what = (
                    f"{len(surplus)} hashes differ; {_name(digest)} of group {group}: "
                    f"{heard.get(example, 0)} blocks by the events, {truth.get(example, 0)} in the index"
                )
                faults.append(Fault("event-residency", what, signature, step=step))
        return faults

    def _tell(self, event: Stored, check: str, signature: str, what: Callable[[Stored], str]) -> list[Fault]:
        """A fault where the stream lies so for the first time. `what` says it in words."""
        if self._groups:
            group = self._groups[event.group]
            signature += f" ({group.kind} group, {'full' if event.block_size == group.block_size else 'partial'} entry)"
        if signature in self._told:
            return []
        self._told.add(signature)
        return [Fault(check, what(event), signature)]

    def _remove(self, event: Removed) -> list[Fault]:
        if not event.hashes:
            return [Fault("event-shape", f"group {event.group} removes nothing", "removed, no hashes")]
        faults = []
        for digest in event.hashes:
            entry = event.group, digest
            blocks = self._blocks.pop(entry, 0)
            if blocks > 1:
                self._blocks[entry] = blocks - 1
            elif blocks < 1:
                what = f"group {event.group} removes {_name(digest)}, under which no block is"
                faults.append(Fault("event-residency", what, "removed, not resident"))
        return faults


def _orphan(event: Stored) -> str:
    """The parent was announced since the last Cleared, by any group and whether or not it is still resident.

    A hash names a whole prefix, in every group the same, so a listener can attach a block to a parent that
    it knows from another group, or that was evicted meanwhile. It cannot attach one to a name that it never heard.
    """
    return f"group {event.group} stores {_name(event.hashes[0])} after {_name(event.parent)}, never announced"


def _misfit(event: Stored) -> str:
    hashes, size = len(event.hashes), event.block_size
    return f"group {event.group} stores {hashes} hashes of {size} tokens each with {len(event.tokens)} tokens"


def _shape(event: Stored) -> str:
    """How a Stored event fails to name something, or to bring the tokens of exactly what it names; empty where it does not."""
    tokens, covered = len(event.tokens), len(event.hashes) * event.block_size
    if not event.hashes:
        return "stored, no hashes"
    if tokens == covered:
        return ""
    if tokens > covered and tokens % event.block_size == 0:
        return "stored, tokens of blocks that it leaves out"  # vLLM: null and masked blocks inside the range
    return "stored, tokens do not fit"


def _name(digest: object) -> str:
    """A hash, short enough for a sentence."""
    return digest.hex()[:12] if isinstance(digest, bytes) else str(digest)[:24]
