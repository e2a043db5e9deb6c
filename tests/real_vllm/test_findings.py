"""What is known about the installed release is still so, and is found without being told where to look."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from kvproof.audit.baseline import Entry, case_in, load_baseline
from kvproof.audit.case import load
from kvproof.audit.engines import make_harness
from kvproof.audit.fuzz import serve
from kvproof.audit.program import Add, Program, Schedule
from kvproof.audit.session import run_program
from kvproof.audit.standalone import standalone
from kvproof.audit.targets.vllm_target import VllmTarget
from kvproof.spec.geometry import Geometry
from kvproof.spec.records import Config, Policy

TARGET = VllmTarget()
BASELINE = Path(__file__).with_name(f"baseline-{TARGET.release}.json")
ENTRIES = load_baseline(BASELINE).accepted
CASES = Path(__file__).parent.parent.parent / "docs" / "cases"
SEEDS = (101, 102, 103, 104, 105)
PROGRAMS = 60  # per seed; some seconds of a search
KNOWN = {entry.identity for entry in ENTRIES}
RETIRED_KEY = "retired-key", "publish: the key was not retired from it (append_only key, partial)"
UNKNOWN_PARENT = "event-parent", "stored, unknown parent (append_only group, partial entry)"


def found(seed: int, wanted: tuple[str, str]) -> bool:
    """Whether a short search from this seed shows the finding."""
    harness = make_harness("vllm")
    for number in range(PROGRAMS):
        program = harness.generate(random.Random(f"{seed}/{number}"), "all", ())
        served = serve(harness, program) if program.config.geometry.scheduler_block <= 16 else ""
        if not isinstance(served, str) and wanted in served[1].findings:
            return True
    return False


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.check}: {entry.signature}"[:80])
def test_an_accepted_finding_still_occurs(entry: Entry) -> None:
    case = case_in(entry, BASELINE)
    assert case.finding.identity in make_harness("vllm", case.geometry).run(case.program).findings


@pytest.mark.parametrize("path", sorted(CASES.glob("*.json")), ids=lambda path: path.stem)
def test_a_case_of_the_docs_still_shows(path: Path) -> None:
    case = load(path)
    assert case.finding.identity in make_harness("vllm", case.geometry).run(case.program).findings


class ShortChunks(VllmTarget):
    """Prompts are cut into chunks of at most 48 tokens, whatever the budget."""

    def reset(self, config: Config) -> None:
        super().reset(config)
        self._scheduler.scheduler_config.long_prefill_token_threshold = 48


def test_keys_of_a_withdrawn_chunk_are_hit_without_state_groups_too() -> None:
    """F4 in a model that has attention only: the victim resumes behind a block that nobody wrote."""
    geometry = Geometry.of(16, num_blocks=11)
    config = Config(geometry, max_batched_tokens=64, max_seqs=2, max_model_len=130, policy=Policy.PRIORITY)
    victim, urgent = Add("a", ((0, 129),), 1, priority=1), Add("b", ((1000, 1016),), 2)
    program = Program(config, (victim, Schedule(), urgent))
    assert ("read-lineage", "attention, never written") in run_program(ShortChunks(), program).findings


@pytest.mark.parametrize("wanted", [RETIRED_KEY, UNKNOWN_PARENT], ids=["the retired key returns", "an unknown parent"])
def test_a_known_bug_is_found_unaided(wanted: tuple[str, str]) -> None:
    """Four of five seeds that nobody tuned for, where the release has the bug at all."""
    if wanted not in KNOWN:
        assert not any(found(seed, wanted) for seed in SEEDS[:2]), "found, and no entry of the baseline explains it"
        return
    assert sum(found(seed, wanted) for seed in SEEDS) >= 4


def test_a_double_free_is_found_on_the_pool_alone() -> None:
    harness = make_harness("vllm-pool")
    checks: set[str] = set()
    for number in range(80):
        outcome = harness.run(harness.generate(random.Random(f"pool/{number}"), "all", ()))
        checks |= {check for check, _ in outcome.findings}
    assert {"refs-are-holders", "acquire-free"} <= checks


def test_a_finding_runs_without_kvproof(tmp_path: Path) -> None:
    """The printed program of the retired key fails by its own assertion, in a process that imports vLLM only."""
    entry = next(entry for entry in ENTRIES if entry.identity == RETIRED_KEY)
    program = tmp_path / "program.py"
    program.write_text(standalone(case_in(entry, BASELINE)))
    assert "kvproof" not in "".join(line for line in program.read_text().splitlines() if "import" in line)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "AssertionError" in done.stderr
