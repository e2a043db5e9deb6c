"""What the rules raise. Each error names the value, the rule and the remedy."""

from __future__ import annotations


class KvproofError(Exception):
    """Base of all errors that kvproof raises on purpose. code: what a command that meets it exits with."""

    code = 2


class GeometryError(KvproofError, ValueError):
    """A geometry, configuration or request that no engine could serve."""


class CopyError(KvproofError, ValueError):
    """A copy batch without a meaning: null, out of range, or two writers of one block."""


class Refused(KvproofError):
    """A guard said no: the action may not be taken in this state."""

    def __init__(self, action: str, guard: str) -> None:
        super().__init__(f"{action} refused: {guard}")
        self.action = action
        self.guard = guard
