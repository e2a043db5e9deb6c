"""`kvproof prove`: what it exits with, and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvproof.audit import cli, proving
from kvproof.audit.case import BadInput
from kvproof.audit.report import HELD, UNAVAILABLE, UNKNOWN, USAGE
from kvproof.audit.target import TargetUnavailable


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
