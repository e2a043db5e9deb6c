"""Everything that is proved, and the page that says it in plain words."""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.proofs.obligations import Obligation, induction


def obligations() -> Iterator[Obligation]:
    """What `kvproof prove` proves."""
    yield from induction()
