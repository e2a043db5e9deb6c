"""The names of prefixes: at every unit boundary, and at the coarser boundaries of a group's blocks.

Inside kvproof a prefix is named by its `Lineage`, which cannot collide. What leaves an engine (event streams, vectors)
carries a *digest* instead: SHA-256 chained over units, so that the digest at a boundary stands for all tokens before it

    digest of 0 tokens   sha256(b"kvproof\\0" + the namespace as JSON: ASCII, Python's default separators)
    digest of n + unit   sha256(digest of n + the tokens of the unit, each as a signed 64-bit little-endian integer)

A block of a coarser size is named by the digest at its last unit boundary; nothing is hashed again. Names at a coarser
size are a *view* of the chain and follow it when the text grows.

vLLM: get_request_block_hasher, hash_block_tokens and BlockHashListWithBlockSize in vllm/v1/core/kv_cache_utils.py.
There the salt goes into the first block and the adapter into every block; here both are the namespace at the root.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from struct import pack

from kvproof.spec.errors import GeometryError
from kvproof.spec.geometry import Group
from kvproof.spec.lineage import Key, Lineage, Path


def prefix_keys(path: Path, group: Group, grain: int) -> Iterator[Key]:
    """The group's keys for the prefixes of `path` that end at a multiple of `grain` tokens, shortest first.

    With the unit as grain these are all names that the group can know; with its block size, those of full blocks.
    """
    return (path[length].key(group) for length in range(grain, len(path) + 1, grain))


def root_digest(namespace: object = None) -> bytes:
    """The digest of the empty prefix. namespace: None, strings, numbers and tuples of them (what JSON has)."""
    return sha256(b"kvproof\0" + json.dumps(namespace, sort_keys=True).encode()).digest()


def unit_digest(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The digest of the prefix that continues `parent`'s by one unit of tokens. 32 bytes."""
    return sha256(parent + pack(f"<{len(tokens)}q", *tokens)).digest()


def digest(lineage: Lineage, unit: int) -> bytes:
    """The digest of a lineage, hashed from its root: O(length). A `Chain` computes the same one unit at a time.

    Raises GeometryError if the lineage does not end at a unit boundary.
    """
    if lineage.length % unit:
        raise GeometryError(
            f"a lineage of {lineage.length} tokens has no digest at unit {unit}: name its prefix of "
            f"{lineage.length // unit * unit} tokens"
        )
    tokens = lineage.tokens()
    name = root_digest(lineage.prefix(0).token)
    for start in range(0, len(tokens), unit):
        name = unit_digest(name, tokens[start : start + unit])
    return name


class Chain:
    """The digests of one growing text: `chain[i]` names its first `(i + 1) * unit` tokens. Hashes each token once."""

    __slots__ = ("_digests", "_rest", "root", "unit")

    def __init__(self, unit: int, namespace: object = None, tokens: Iterable[int] = ()) -> None:
        self.unit = unit
        self.root = root_digest(namespace)
        self._digests: list[bytes] = []
        self._rest: list[int] = []
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text; those after the last unit boundary wait for the rest of their unit."""
        self._rest += tokens
        whole = len(self._rest) // self.unit * self.unit
        for start in range(0, whole, self.unit):
            parent = self._digests[-1] if self._digests else self.root
            self._digests.append(unit_digest(parent, self._rest[start : start + self.unit]))
        del self._rest[:whole]

    def __len__(self) -> int:
        """Number of whole units."""
        return len(self._digests)

    def __getitem__(self, index: int) -> bytes:
        return self._digests[index]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._digests)

    def view(self, block_size: int) -> View:
        """The same chain, read at a coarser block size in tokens.

        Raises GeometryError if the unit does not divide it.
        """
        if block_size < 1 or block_size % self.unit:
            raise GeometryError(
                f"unit {self.unit} does not divide block size {block_size}: view the chain at a multiple of its unit"
            )
        return View(self, block_size // self.unit)


class View:
    """A chain read every `units` units: `view[i]` names the prefix that ends with block i. Holds no digests."""

    __slots__ = ("chain", "units")

    def __init__(self, chain: Chain, units: int) -> None:
        self.chain = chain
        self.units = units

    def __len__(self) -> int:
        """Number of full blocks."""
        return len(self.chain) // self.units

    def __getitem__(self, index: int) -> bytes:
        return self.chain[(range(len(self))[index] + 1) * self.units - 1]

    def __iter__(self) -> Iterator[bytes]:
        return (self[index] for index in range(len(self)))
