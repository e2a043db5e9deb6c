"""The command line: exit codes, three closing lines, and no traceback for anything that a user types."""

import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.audit.toy import FLAT, Toy

from kvproof.audit import cli, engines
from kvproof.audit.checks import GUARDS
from kvproof.audit.engines import Harness
from kvproof.audit.fuzz import Plan, Summary
from kvproof.audit.probe import ProbeResult
from kvproof.audit.target import TargetUnavailable
from kvproof.audit.workload import SHAPES
from kvproof.spec.actions import ACTIONS

Run = Callable[..., tuple[int, str, str]]
FLAT_OPTIONS = ("--geometry", "4")


def make_toy(name: str, geometry: str | None = None) -> Harness:
    """Targets are toys: `vllm` has a bug, `reference` has none, `vllm-pool` is not installed."""
    if name == "vllm-pool":
        raise TargetUnavailable("vllm is not installed here: run `make fuzz TARGET=vllm`")
    if name not in engines.TARGETS:
        return engines.make_harness(name)
    return Harness.of(name, Toy("silent" if name == "vllm" else None))


@pytest.fixture(autouse=True)
def in_a_folder_with_toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "make_harness", make_toy)
    monkeypatch.setitem(SHAPES, "4", FLAT)
    monkeypatch.setattr(cli, "probe", lambda seed, offers: ProbeResult(offers=offers))
    monkeypatch.setattr(ProbeResult, "silent", [])


@pytest.fixture
def kvproof(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command; its exit code, its output and its errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kvproof", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return int(stopped.value.code or 0), captured.out, captured.err

    return run


FUZZ = ("fuzz", *FLAT_OPTIONS, "--time", "0.4")


def test_held(kvproof: Run) -> None:
    code, out, _ = kvproof(*FUZZ)
    assert code == 0
    held, again, knob = out.splitlines()[-3:]
    assert re.match(r"held: nothing new in \d+ steps \(\d+ s\)", held)
    assert again == "again: kvproof fuzz --target reference --profile all --geometry 4 --seed 0 --time 0.4"
    assert knob.startswith("next:  --seed 1")


def test_violated_replayed_explained_and_accepted(kvproof: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = kvproof(*FUZZ, "--target", "vllm")
    assert code == 1
    (case,) = Path("out").glob("*.json")
    assert case.with_suffix(".py").exists()
    assert out.splitlines()[-2].startswith(f"again: kvproof replay {case}, or for all: kvproof fuzz ")

    code, out, _ = kvproof("replay", str(case))
    assert code == 1
    assert out.splitlines()[-3].startswith("violated: finished-forgotten as recorded on 1")
    code, out, _ = kvproof("replay", str(case), "--target", "reference")
    assert (code, out.splitlines()[-3].split(":")[0]) == (0, "held")
    code, out, _ = kvproof("explain", str(case))
    assert code == 0
    assert "class Engine" in out
    assert "  steps" in out

    code, out, _ = kvproof(*FUZZ, "--target", "vllm", "--baseline", "b.json", "--accept", "a toy")
    assert code == 0
    code, out, _ = kvproof(*FUZZ, "--target", "vllm", "--baseline", "b.json")
    assert code == 0
    assert "accepted: finished-forgotten" in out
    monkeypatch.setattr(cli, "make_harness", lambda name, geometry: Harness.of("vllm", Toy()))
    code, out, _ = kvproof(*FUZZ, "--target", "vllm", "--baseline", "b.json")
    assert code == 0
    assert "gone: finished-forgotten (never told) no longer occurs" in out


@pytest.mark.parametrize("form", ["json", "junit", "sarif"])
def test_formats_print_nothing_else(kvproof: Run, form: str) -> None:
    code, out, _ = kvproof(*FUZZ, "--target", "vllm", "--format", form)
    assert code == 1
    assert out[0] in "{<"
    assert out.rstrip()[-1] in "}>"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("fuzz", "--target", "tgi"), "no target is named 'tgi'"),
        (("fuzz", "--profile", "calm"), "no profile is named 'calm'"),
        (("fuzz", "--geometry", "3/5"), "no geometry is named '3/5'"),
        (("fuzz", "--baseline", "none.json"), "none.json"),
        (("fuzz", "--accept", "why"), "add --baseline"),
        (("fuzz", "--time", "-1"), "--time"),
        (("fuzz", "--seed", "x"), "--seed"),
        (("replay", "none.json"), "none.json"),
        (("replay",), "CASE"),
        (("explain", "key-tru"), "did you mean 'key-true'?"),
        (("explain", "none.json"), "none.json"),
        (("disprove",), "disprove"),
    ],
)
def test_bad_input_is_two(kvproof: Run, arguments: tuple[str, ...], complaint: str) -> None:
    code, out, err = kvproof(*arguments)
    assert code == 2
    assert complaint.lower() in (out + err).lower()


def test_a_damaged_case_is_two_and_one_line(kvproof: Run) -> None:
    Path("c.json").write_text('{"format": 1')
    code, out, err = kvproof("replay", "c.json")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith("error: c.json:1:")


def test_an_unavailable_target_is_four_and_one_line(kvproof: Run) -> None:
    code, out, err = kvproof("fuzz", "--target", "vllm-pool")
    assert (code, out) == (4, "")
    assert err == "error: vllm is not installed here: run `make fuzz TARGET=vllm`\n"


def test_a_run_in_which_nothing_ran_is_five(kvproof: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toy, "busy", lambda self: False)
    monkeypatch.setattr(Toy, "add", lambda self, request: None)
    code, out, _ = kvproof(*FUZZ)
    assert (code, out.splitlines()[-3].split(":")[0]) == (5, "vacuous")


def long_summary() -> Summary:
    summary = Summary(Plan("reference"), "1", steps=1)
    summary.actions.update(dict.fromkeys(ACTIONS, 1))
    return summary


def test_long_runs_of_the_reference_engine_need_every_action() -> None:
    summary = long_summary()
    del summary.actions["share"]
    cli.judge_probe(summary, ProbeResult(happened=Counter({"start": 1})))
    assert cli.closing(summary, None, {}).code == 5
    assert summary.silent == ["share"]


def test_long_runs_of_the_reference_engine_need_every_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.closing(long_summary(), None, {}).code == 0
    monkeypatch.setattr(ProbeResult, "silent", ["share / the block answers the key"])
    summary = long_summary()
    cli.judge_probe(summary, ProbeResult())
    assert "share / the block answers the key" in cli.closing(summary, None, {}).verdict


def test_a_broken_clause_of_the_probe_is_a_violation(kvproof: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "probe", lambda seed, offers: ProbeResult(offers, broken=["share(..) broke 'x' for 1"]))
    code, out, _ = kvproof(*FUZZ)
    assert code == 1
    assert "broke 'x'" in out


def test_the_probe_goes_on_until_every_guard_has_refused() -> None:
    asked: list[int] = []

    def some_refusals(seed: int, offers: int) -> ProbeResult:
        asked.append(seed)
        return ProbeResult(offers, Counter(dict.fromkeys(ACTIONS, 1)), Counter({("share", str(len(asked))): 1}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "probe", some_refusals)
        patch.setattr(ProbeResult, "silent", property(lambda result: ["x"] * (len(result.refused) < 4)))
        total = cli.probe_guards(7, 60, None)
    assert len(set(asked)) == 4
    assert total.offers == 4 * cli.PROBE_OFFERS


def test_explain(kvproof: Run) -> None:
    code, out, _ = kvproof("explain")
    assert code == 0
    assert all(name in out for name in (*ACTIONS, *GUARDS, "key-true"))
    assert "severity  corruption" in kvproof("explain", "key-true")[1]
    assert "who may" in kvproof("explain", "share")[1]
    assert "reported under" in kvproof("explain", "the block is free")[1]


def test_doctor_names_targets_and_the_tests_that_need_a_gpu(kvproof: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproof.audit.doctor.make_harness", make_toy)
    code, out, _ = kvproof("doctor")
    assert code == 0
    assert "make test-gpu" in out
    assert "vllm-pool: the block pool of the installed vLLM, alone: not available: vllm is not installed" in out
    assert "reference: the reference engine: available" in out
    assert len(out.splitlines()[-3:]) == 3


def test_commands_of_later_issues_are_no_stubs() -> None:
    names = {command.name or command.callback.__name__ for command in cli.app.registered_commands}  # type: ignore[union-attr]
    assert names == {"fuzz", "replay", "explain", "prove", "doctor"}
