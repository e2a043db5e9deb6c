"""Promises on the Python functions themselves, which CrossHair searches for a counterexample.

CrossHair runs a function on symbolic values and follows its paths, as many as the time allows. "confirmed" means that it went
through all of them. "not confirmed" is a search that found nothing, and no proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvproof.spec.chunks import chunk
from kvproof.spec.geometry import Geometry, Group, Kind
from kvproof.spec.hashing import digests
from kvproof.spec.lineage import UNKNOWN, Content, Forest, Key, Lineage, Path, written
from kvproof.spec.lookup import common_hit, hit_keys

ATTENTION, STATE = Group(0, Kind.APPEND_ONLY, 2), Group(1, Kind.STATE, 2)
NOT_CONFIRMED = "not confirmed: a search that found nothing"
Bits = tuple[bool, bool, bool, bool]  # a text of two blocks
Write = tuple[bool, bool, bool]  # into the second block: of which text, without the first token, without the last


def setting(one: Bits, two: Bits, rows: bool) -> tuple[Group, tuple[Lineage, Lineage]]:
    root = Forest().root()
    return ATTENTION if rows else STATE, (root.extended(map(int, one)), root.extended(map(int, two)))


def content_after(group: Group, texts: tuple[Lineage, ...], writes: tuple[Write, ...]) -> Content:
    content = UNKNOWN
    for second, late, early in writes:
        if not (late and early):
            content = written(content, group, 3 if late else 2, 3 if early else 4, texts[second])
    return content


def what_extends_answers(one: Bits, two: Bits, old: Write, new: Write, full: bool, rows: bool) -> bool:
    """What extends a content answers its keys.

    post: _
    """
    group, texts = setting(one, two, rows)
    before, after = content_after(group, texts, (old,)), content_after(group, texts, (old, new))
    key = texts[0].prefix(4 if full else 3).key(group)
    return after.answers(key) or not (after.extends(before) and before.answers(key))


def what_answers_covers(one: Bits, two: Bits, writes: tuple[Write, Write], long: bool, short: bool, rows: bool) -> bool:
    """What answers a key answers all that it covers, which has the same slot.

    post: _
    """
    group, texts = setting(one, two, rows)
    content = content_after(group, texts, writes)
    key, need = texts[0].prefix(4 if long else 3).key(group), texts[1].prefix(2 if short else 3).key(group)
    return not key.covers(need) or (key.slot == need.slot and (content.answers(need) or not content.answers(key)))


def what_is_written_answers(one: Bits, two: Bits, writes: tuple[Write, Write], rows: bool) -> bool:
    """After a write of a whole block it answers the key at its end, and one in the middle if it keeps rows.

    post: _
    """
    group, texts = setting(one, two, rows)
    content = content_after(group, texts, (*writes, (False, False, False)))
    return content.answers(texts[0].key(group)) and content.answers(texts[0].prefix(3).key(group)) == rows


def a_hit_is_served(attention: Bits, state: Bits, wide: tuple[bool, bool], length: int) -> bool:
    """The keys of a hit are found, fill its slots and cover it; for blocks of two or four tokens.

    pre: 0 <= length <= 4
    post: _
    """
    geometry, path = Geometry.of(4 if wide[0] else 2, (4 if wide[1] else 2,), unit=1), Path(Forest().root(), [0] * length)

    def keyed(key: Key) -> bool:
        return (state if key.group.index else attention)[key.lineage.length - 1]

    hit, most = common_hit(keyed, path, geometry).length, max(length - 1, 0)
    for group in geometry.groups:
        keys = hit_keys(keyed, path, group, 1, hit, most)
        served = [key is None or (keyed(key) and key.slot == slot) for slot, key in enumerate(keys)]
        if not all(served) or len(keys) != group.blocks_for(hit):
            return False
        if keys and (keys[-1] is None or not keys[-1].covers(path[hit].key(group))):
            return False
    return hit <= most


def a_block_is_named_by_its_text(text: Bits, wide: bool, many: bool) -> bool:
    """Names of blocks are slices of those of units: each is the last name of the text that ends with the block.

    post: _
    """
    tokens, unit, units = list(map(int, text)), 2 if wide else 1, 2 if many else 1
    ends = range(units * unit, len(tokens) + 1, units * unit)
    return digests(tokens, unit)[units::units] == [digests(tokens[:end], unit)[-1] for end in ends]


def a_chunk_gets_on(start: int, wanted: int, prompt: int, length: int, junction: int) -> bool:
    """A chunk takes from 0 to `wanted` tokens, and some if it may take a block; here the unit is one and the block four.

    pre: 0 <= start and 4 <= wanted and 1 <= prompt <= length and start + wanted <= length
    post: _
    """
    return 1 <= chunk(start, wanted, prompt, length, block=4, unit=1, widest=wanted, junction=junction) <= wanted


CONTRACTS = (
    what_extends_answers,
    what_answers_covers,
    what_is_written_answers,
    a_hit_is_served,
    a_block_is_named_by_its_text,
    a_chunk_gets_on,
)


def crosshair(seconds: float, contracts: tuple[Callable[..., bool], ...] = CONTRACTS) -> Iterator[tuple[str, str]]:
    """Each contract with what a search of so many seconds says: "confirmed", `NOT_CONFIRMED`, or a counterexample."""
    from crosshair.core_and_libs import MessageType, analyze_function, run_checkables
    from crosshair.options import AnalysisKind, AnalysisOptionSet

    verdicts = {MessageType.CONFIRMED: "confirmed", MessageType.CANNOT_CONFIRM: NOT_CONFIRMED}
    options = AnalysisOptionSet(analysis_kind=[AnalysisKind.PEP316], per_condition_timeout=seconds, report_all=True)
    for contract in contracts:
        for message in run_checkables(analyze_function(contract, options)):
            yield contract.__name__, verdicts.get(message.state, message.message)
