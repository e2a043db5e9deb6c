"""Promises on the Python functions themselves, which CrossHair searches for a counterexample.

CrossHair runs a function on symbolic values and follows its paths, as many as the time allows. "confirmed" means that it went
through all of them. "not confirmed" is a search that found nothing, and no proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvproof.spec.chunks import chunk
from kvproof.spec.geometry import Geometry, Group, Kind
from kvproof.spec.lineage import UNKNOWN, Content, Forest, Key, Lineage, Path, written
from kvproof.spec.lookup import common_hit, hit_keys

ATTENTION, STATE = Group(0, Kind.APPEND_ONLY, 2), Group(1, Kind.STATE, 2)
NOT_CONFIRMED = "not confirmed: a search that found nothing"
Write = tuple[int, int, int]  # which text, start and stop inside the second block


def content_after(root: Lineage, group: Group, texts: list[list[int]], writes: list[Write]) -> Content:
    content = UNKNOWN
    for text, start, stop in writes:
        content = written(content, group, start, stop, root.extended(texts[text]))
    return content


def sane(texts: list[list[int]], writes: list[Write]) -> bool:
    """Two texts of two blocks over two tokens, and writes into the second block."""
    return (
        len(texts) == 2
        and all(len(text) == 4 and all(token in (0, 1) for token in text) for text in texts)
        and len(writes) <= 2
        and all(text in (0, 1) and 2 <= start < stop <= 4 for text, start, stop in writes)
    )


def what_extends_answers(texts: list[list[int]], old: list[Write], new: list[Write], length: int, rows: bool) -> bool:
    """What extends a content answers its keys.

    pre: sane(texts, old) and sane(texts, new) and 3 <= length <= 4
    post: _
    """
    root, group = Forest().root(), ATTENTION if rows else STATE
    before, after = content_after(root, group, texts, old), content_after(root, group, texts, [*old, *new])
    key = root.extended(texts[0][:length]).key(group)
    return after.answers(key) or not (after.extends(before) and before.answers(key))


def what_answers_covers(texts: list[list[int]], writes: list[Write], long: int, short: int, rows: bool) -> bool:
    """What answers a key answers all that it covers, and that is a prefix in the same slot.

    pre: sane(texts, writes) and 1 <= long <= 4 and 1 <= short <= 4
    post: _
    """
    root, group = Forest().root(), ATTENTION if rows else STATE
    content = content_after(root, group, texts, writes)
    key, need = (root.extended(texts[n][:size]).key(group) for n, size in ((0, long), (1, short)))
    return not key.covers(need) or (key.slot == need.slot and (content.answers(need) or not content.answers(key)))


def what_is_written_answers(texts: list[list[int]], writes: list[Write], rows: bool) -> bool:
    """After a write of a whole block, the block answers the key at its end, and one in the middle if it keeps rows.

    pre: sane(texts, writes)
    post: _
    """
    root, group = Forest().root(), ATTENTION if rows else STATE
    content = content_after(root, group, texts, [*writes, (0, 2, 4)])
    end, middle = (root.extended(texts[0][:size]).key(group) for size in (4, 3))
    return content.answers(end) and content.answers(middle) == rows


def a_hit_is_served(factors: tuple[int, int], unit: int, length: int, found: list[bool]) -> bool:
    """The keys of a hit are found, fill its slots and cover it.

    pre: 1 <= unit <= 2 and all(1 <= factor <= 3 for factor in factors) and 0 <= length <= 8 and len(found) == 16
    post: _
    """
    geometry, path = Geometry.of(factors[0] * unit, (factors[1] * unit,), unit=unit), Path(Forest().root(), [0] * length)

    def keyed(key: Key) -> bool:
        return found[(key.lineage.length - 1) * 2 + key.group.index]

    hit, most = common_hit(keyed, path, geometry).length, max(length - 1, 0)
    for group in geometry.groups:
        keys = hit_keys(keyed, path, group, unit, hit, most)
        served = [key is None or (keyed(key) and key.slot == slot) for slot, key in enumerate(keys)]
        if not all(served) or len(keys) != group.blocks_for(hit):
            return False
        if keys and (keys[-1] is None or not keys[-1].covers(path[hit].key(group))):
            return False
    return hit <= most


def a_chunk_gets_on(start: int, wanted: int, prompt: int, length: int, blocks: int, junction: int) -> bool:
    """A chunk takes from 0 to `wanted` tokens, and some if it may take a block; here the unit is one and the block four.

    pre: 0 <= start and 4 <= wanted and 1 <= prompt <= length and start + wanted <= length and blocks >= 1
    post: _
    """
    return 1 <= chunk(start, wanted, prompt, length, block=4, unit=1, widest=wanted, junction=junction) <= wanted


CONTRACTS = (what_extends_answers, what_answers_covers, what_is_written_answers, a_hit_is_served, a_chunk_gets_on)


def crosshair(seconds: float, contracts: tuple[Callable[..., bool], ...] = CONTRACTS) -> Iterator[tuple[str, str]]:
    """Each contract with what a search of so many seconds says: "confirmed", `NOT_CONFIRMED`, or a counterexample."""
    from crosshair.core_and_libs import MessageType, analyze_function, run_checkables
    from crosshair.options import AnalysisKind, AnalysisOptionSet

    verdicts = {MessageType.CONFIRMED: "confirmed", MessageType.CANNOT_CONFIRM: NOT_CONFIRMED}
    options = AnalysisOptionSet(analysis_kind=[AnalysisKind.PEP316], per_condition_timeout=seconds, report_all=True)
    for contract in contracts:
        for message in run_checkables(analyze_function(contract, options)):
            yield contract.__name__, verdicts.get(message.state, message.message)
