"""`kvproof prove`: what it exits with, and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvproof.audit import cli, proving
from kvproof.audit.case import BadInput
from kvproof.audit.report import HELD, UNAVAILABLE, UNKNOWN, USAGE, VACUOUS, VIOLATED
from kvproof.audit.target import TargetUnavailable
from kvproof.proofs.obligations import Obligation
from kvproof.proofs.runner import Answer, Verdict


@pytest.fixture(autouse=True)
def in_a_folder_with_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["kvproof", "prove", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    out, err = capsys.readouterr()
    return int(exit_.value.code or 0), out, err


def test_one_obligation_in_detail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(monkeypatch, capsys, "key-true", "move")
    assert code == HELD
    assert "by: the source is ready" in out, "the guard that the proof needs"
    again, knob = out.splitlines()[-2:]
    assert again == "again: kvproof prove key-true move"
    assert knob.startswith("next:")


def test_a_millisecond_is_not_enough(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(monkeypatch, capsys, "--solver-timeout", "1ms")
    assert code == UNKNOWN
    assert "unknown:" in out


def test_texts_are_printed_and_not_solved(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(monkeypatch, capsys, "retired-key", "publish", "--print-smtlib")
    assert code == HELD
    assert out.count("(check-sat)") == 1
    assert "|the key was not retired from it|" in out


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("no such clause",), "key-true"),
        (("-", "fly"), "no action is named 'fly': start, finish"),
        (("--solver-timeout", "soon"), "write 500ms, 2s or 0.5"),
        (("--mutants", "--states"), "--mutants and --states are different runs: give one of them"),
        (("key-true", "--necessity"), "leave out 'key-true'"),
        (("--long",), "add --states"),
    ],
)
def test_bad_input_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], remedy: str
) -> None:
    code, _, err = run(monkeypatch, capsys, *arguments)
    assert code == USAGE
    assert len(err.splitlines()) == 1
    assert remedy in err


def test_no_solver_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(proving, "find_spec", lambda name: None)
    code, _, err = run(monkeypatch, capsys)
    assert code == UNAVAILABLE
    assert "pip install 'kvproof[prove]'" in err
    with pytest.raises(TargetUnavailable):
        proving.need_solver()


@pytest.mark.parametrize(("text", "value"), [("1ms", 0.001), ("2s", 2.0), ("0.5", 0.5)])
def test_durations(text: str, value: float) -> None:
    assert proving.seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "s", "-1s", "0", "inf", "nan", "1h"])
def test_no_durations(text: str) -> None:
    with pytest.raises(BadInput):
        proving.seconds(text)


def test_everything_holds_and_is_reached(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(monkeypatch, capsys)
    assert code == HELD, out
    again, _, _ = run(monkeypatch, capsys)
    assert again == HELD


def test_an_action_that_is_never_reached_makes_it_vacuous(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(proving, "unreachable", lambda: ["spoil"])
    code, out, _ = run(monkeypatch, capsys)
    assert code == VACUOUS
    assert "never reached: spoil" in out


def test_a_wrong_rule_is_refuted_in_words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(monkeypatch, capsys, "--mutant", "49125-retired-key-returns")
    assert code == VIOLATED
    assert "publish: a retired key does not come back" in out, "the obligation that fails"
    assert "broken for block 1: a retired key does not come back" in out, "the run that shows it"


def test_no_such_wrong_rule(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(monkeypatch, capsys, "--mutant", "49125-retired-key-return")
    assert code == USAGE
    assert "49125-retired-key-returns" in err


def test_a_refuted_theorem_and_an_impossible_witness(capsys: pytest.CaptureFixture[str]) -> None:
    theorem = Obligation("induction", ("a", "b"), "It is so.", "", "unsat")
    wanted = Obligation("witness", ("c",), "It can be so.", "", "sat")
    unknown = Verdict(theorem, Answer("unknown", 1.0), cached=False)
    refuted, impossible = (
        Verdict(theorem, Answer("sat", 1.0), cached=False),
        Verdict(wanted, Answer("unsat", 1.0), cached=False),
    )
    codes = [
        proving.ending(verdicts, 1.0, "").code for verdicts in ([], [refuted, unknown], [refuted, impossible], [impossible])
    ]
    assert codes == [USAGE, UNKNOWN, VIOLATED, VACUOUS]
    assert "  refuted: It is so." in proving.summary([refuted])
    assert "  impossible: It can be so." in proving.summary([impossible])


def test_a_guard_is_explained_by_a_run() -> None:
    lines = proving.guard_runs("the source is ready")
    assert "Without it this no longer holds: a keyed block answers all its keys once the staged step is done." in lines
    assert any("move" in line and "!" in line for line in lines)
    assert proving.guard_runs("nothing else filled it")[0].startswith("no clause misses it")


def test_a_contract_that_does_not_hold_violates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproof.proofs.contracts.crosshair", lambda timeout: [("a", "confirmed"), ("b", "false when x = 0")])
    lines, end = proving.contracts(1.0)
    assert end.code == VIOLATED
    assert lines[1] == "b: false when x = 0"
