"""Solves obligations in parallel processes, and remembers by their text what the solver said."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import z3

import kvproof.proofs
import kvproof.spec
from kvproof.proofs.obligations import Obligation
from kvproof.spec.errors import KvproofError

NAMED = re.compile(r":named \|([^|]*)\|")
BATCH = 16  # obligations that a process is handed at a time
TIMEOUT = 20.0

Say = Callable[[int, str], None]  # how many are done, and the last one's name


class SolverUnknown(KvproofError):
    """The solver did not know. That is neither yes nor no."""

    code = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """What a solver said: "unsat", "sat" or "unknown"; in how many seconds; and of an unsat, which assertions refute each
    other. It is one such set, not the smallest."""

    said: str
    seconds: float
    core: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """An obligation and its answer. cached: from an earlier run on the same text by the same solver."""

    obligation: Obligation
    answer: Answer
    cached: bool

    @property
    def holds(self) -> bool:
        return self.answer.said == self.obligation.expect

    @property
    def unknown(self) -> bool:
        return self.answer.said == "unknown"


def solve(smt: str, seconds: float = TIMEOUT, *, core: bool = False) -> Answer:
    """One text, in this process. core: find one, where the assertions have names; it takes thrice the time."""
    solver = z3.Solver()
    solver.set("timeout", max(1, round(seconds * 1000)))
    terms, names = z3.parse_smt2_string(smt), NAMED.findall(smt) if core else []
    solver.add([] if names else terms)
    for name, term in zip(names, terms if names else [], strict=True):
        solver.assert_and_track(term, name)
    start = time.perf_counter()
    said = str(solver.check())
    took = time.perf_counter() - start
    return Answer(said, round(took, 4), tuple(sorted(map(str, solver.unsat_core()))) if said == "unsat" else ())


class Cache:
    """Definite answers by the digest of their text, and the texts by that of the sources they were made from. An `unknown`
    is never kept. One file per version of the solver and of Python each; a damaged one only costs time.

    folder: None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._version = f"z3-{z3.get_version_string()}-python-{platform.python_version()}"
        self._answers = {key: Answer(said, took, tuple(core)) for key, (said, took, core) in self._read("answers", {}).items()}

    def get(self, obligation: Obligation, seconds: float, *, core: bool = False) -> Answer | None:
        """What is known, where it was found within the time that is given now, and with a core where one is wanted."""
        answer = self._answers.get(obligation.digest)
        enough = answer and answer.seconds <= seconds and (answer.core or answer.said == "sat" or not core)
        return answer if enough else None

    def keep(self, verdicts: Iterable[Verdict]) -> None:
        fresh = {v.obligation.digest: v.answer for v in verdicts if not v.cached and not v.unknown}
        if fresh:
            self._answers |= fresh
            self._write("answers", {key: (a.said, a.seconds, a.core) for key, a in self._answers.items()})

    def made(self, make: Callable[[], Iterable[Obligation]]) -> list[Obligation]:
        """What `make` makes, which depends on nothing but the sources of the rules and proofs."""
        rules = hashlib.sha256(b"".join(path.read_bytes() for path in sources())).hexdigest()
        kept = self._read("texts", {})
        if kept.get("sources") != rules:
            kept = {"sources": rules, "texts": [(o.family, o.name, o.sentence, o.smt, o.expect) for o in make()]}
            self._write("texts", kept)
        return [Obligation(family, tuple(name), *rest) for family, name, *rest in kept["texts"]]

    def _read(self, what: str, otherwise: Any) -> Any:
        try:
            return json.loads((self._folder / f"{what}-{self._version}.json").read_text()) if self._folder else otherwise
        except (OSError, ValueError):
            return otherwise

    def _write(self, what: str, value: Any) -> None:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            draft = self._folder / f"{what}-{os.getpid()}"
            draft.write_text(json.dumps(value))
            draft.replace(self._folder / f"{what}-{self._version}.json")


def sources() -> list[Path]:
    """The files of the rules and of the proofs."""
    return [path for module in (kvproof.spec, kvproof.proofs) for path in sorted(Path(module.__path__[0]).glob("*.py"))]


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvproof"


def prove(
    obligations: Iterable[Obligation],
    *,
    cache: Cache,
    seconds: float = TIMEOUT,
    core: bool = False,
    jobs: int = 0,
    say: Say | None = None,
) -> Iterator[Verdict]:
    """The verdict of each obligation, as they come. seconds: for each. core: with one. jobs: processes, 0 for one per core."""
    known = [(obligation, cache.get(obligation, seconds, core=core)) for obligation in obligations]
    yield from (Verdict(obligation, answer, cached=True) for obligation, answer in known if answer)
    asked, fresh = [obligation for obligation, answer in known if not answer], list[Verdict]()
    if not asked:
        return
    with ProcessPoolExecutor(jobs or os.cpu_count(), mp_context=multiprocessing.get_context("fork")) as pool:
        answers = pool.map(partial(solve, seconds=seconds, core=core), (o.smt for o in asked), chunksize=BATCH)
        for obligation, answer in zip(asked, answers, strict=True):
            fresh.append(Verdict(obligation, answer, cached=False))
            if say:
                say(len(known) - len(asked) + len(fresh), " ".join(obligation.name))
            yield fresh[-1]
    cache.keep(fresh)
