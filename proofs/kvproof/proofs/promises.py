"""Everything that `kvproof prove` proves."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from kvproof.proofs.liveness import liveness
from kvproof.proofs.obligations import Obligation, induction
from kvproof.proofs.policies import policies


def obligations() -> Iterator[Obligation]:
    return chain(induction(), policies(), liveness())
