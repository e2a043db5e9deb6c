"""The generated pages of docs/ are what the rules say, and a run is shown in the rules' words."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvproof.audit import pages
from kvproof.audit.pages import PAGES, how_killed, times
from kvproof.audit.runtable import render, why
from kvproof.proofs.mutants import MUTANTS
from kvproof.proofs.obligations import Obligation
from kvproof.proofs.promises import obligations
from kvproof.proofs.runner import Answer, Verdict
from kvproof.proofs.runs import Run, load
from kvproof.spec.clauses import CLAUSES

DOCS = Path(__file__).parent.parent.parent / "docs"
GUARD = ("finish", "it holds nothing but fences")
RUN = Run((("start", ("r",)), ("acquire", ("h1", "1", "r")), ("finish", ("r",))), False, GUARD, 2)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_rules_say(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name](), "run `make pages`"


def test_every_theorem_is_on_the_page() -> None:
    text = PAGES["promises.md"]().lower()
    assert [name for name in CLAUSES if f"**{name}." not in text] == []
    told = (o for o in obligations() if o.family not in ("start", "induction", "witness"))
    assert [obligation.sentence for obligation in told if f" {obligation.sentence.lower()}\n" not in text] == []


def test_a_guard_without_a_run_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "No run is known." not in PAGES["necessity.md"]()
    monkeypatch.setattr(pages, "load", lambda: ({"guards": {}}, True))
    assert "No run is known." in PAGES["necessity.md"]()


def test_a_table_shows_what_changed_and_what_broke() -> None:
    assert render(RUN) == [
        "    action   arguments                    1: held by",
        "1   start    owner r",
        "2   acquire  holder h1, block 1, owner r  h1 of r",
        "3!  finish   owner r",
        "!  against the guard: it holds nothing but fences",
        "broken for holder h1: a holder is a fence or belongs to somebody alive",
    ]


def test_a_run_says_what_breaks() -> None:
    assert why(RUN) == "Without it this no longer holds: a holder is a fence or belongs to somebody alive."
    assert all(why(run) for run in load()[0]["guards"].values())


def test_how_a_mutant_dies_or_why_not() -> None:
    assert how_killed(MUTANTS["398-null-block-handed-out"])[0] == "acquire: the null block is inert"
    assert how_killed(MUTANTS["rows-read-not-counted"])[0].startswith("survives: ")


def test_times_are_summed_by_clause() -> None:
    verdicts = [
        Verdict(Obligation("induction", (action, "it holds"), "", ""), Answer("unsat", seconds), cached=False)
        for action, seconds in (("a", 0.25), ("b", 0.5))
    ]
    assert times(verdicts).splitlines()[-1] == "| induction | it holds | 2 | 0.750 | 0.500 |"
