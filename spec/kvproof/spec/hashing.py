"""The names of prefixes: at every unit boundary, and at the coarser boundaries of a group's blocks.

Inside kvproof a prefix is named by its `Lineage`, which cannot collide. What leaves an engine (event streams, vectors)
carries a *digest* instead: SHA-256 chained over units, so that the digest at a boundary stands for all tokens before it

    digest of 0 tokens   sha256(b"kvproof\\0" + the namespace as JSON: ASCII, Python's default separators)
    digest of n + unit   sha256(digest of n + the tokens of the unit, each as a signed 64-bit little-endian integer)

A block of a coarser size is named by the digest at its last unit boundary; nothing is hashed again.

vLLM: get_request_block_hasher, hash_block_tokens and BlockHashListWithBlockSize in vllm/v1/core/kv_cache_utils.py.
There the salt goes into the first block and the adapter into every block; here both are the namespace at the root.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from itertools import accumulate
from struct import pack


def root_digest(namespace: object = None) -> bytes:
    """The digest of the empty prefix. namespace: None, strings, numbers and tuples of them (what JSON has)."""
    return sha256(b"kvproof\0" + json.dumps(namespace, sort_keys=True).encode()).digest()


def unit_digest(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The digest of the prefix that continues `parent`'s by one unit of tokens. 32 bytes."""
    return sha256(parent + pack(f"<{len(tokens)}q", *tokens)).digest()


def digests(tokens: Sequence[int], unit: int, namespace: object = None) -> list[bytes]:
    """The names of a text's prefixes: `[i]` is that of its first `i * unit` tokens, so `[n::n]` names blocks of n units."""
    units = (tokens[stop - unit : stop] for stop in range(unit, len(tokens) + 1, unit))
    return list(accumulate(units, unit_digest, initial=root_digest(namespace)))
