"""A baseline accepts exact findings, with a reason and a case, and knows which of them are gone."""

import json
from pathlib import Path

import msgspec
import pytest
from tests.audit.test_case import FOUND, some_case

from kvproof.audit.baseline import Baseline, Entry, accept, case_in, gone, load_baseline
from kvproof.audit.case import BadInput, Case, pretty, save


def other_case(signature: str) -> Case:
    return msgspec.structs.replace(some_case(), finding=msgspec.structs.replace(FOUND, signature=signature))


def test_accepted_findings_are_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "baseline.json"
    accept(path, [some_case()], "known: issue 1")
    accept(path, [other_case("b"), some_case()], "known: issue 2")
    entries = load_baseline(path).identities
    assert {identity: entry.reason for identity, entry in entries.items()} == {
        ("read-lineage", "b"): "known: issue 2",
        FOUND.identity: "known: issue 1",
    }
    assert case_in(entries[FOUND.identity], path) == some_case()


def test_signatures_are_exact(tmp_path: Path) -> None:
    accept(tmp_path / "b.json", [other_case("attention")], "why")
    accepted = load_baseline(tmp_path / "b.json").identities
    assert ("read-lineage", "attention") in accepted
    assert ("read-lineage", "attention, slot partly written") not in accepted
    assert ("state-ready", "attention") not in accepted


def test_a_case_may_lie_in_a_file_beside_the_baseline(tmp_path: Path) -> None:
    save(some_case(), tmp_path / "cases" / "one.json")
    path = tmp_path / "b.json"
    path.write_bytes(pretty(Baseline(1, (Entry(*FOUND.identity, "why", "cases/one.json"),))))
    (entry,) = load_baseline(path).accepted
    assert case_in(entry, path) == some_case()


def test_what_no_longer_occurs_is_known(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    accept(path, [other_case("seen"), other_case("hidden"), other_case("gone")], "why")
    asked: list[str] = []

    def shows(case: Case) -> bool:
        asked.append(case.finding.signature)
        return case.finding.signature == "hidden"

    left = gone(load_baseline(path), path, {("read-lineage", "seen")}, shows)
    assert [entry.signature for entry in left] == ["gone"]
    assert sorted(asked) == ["gone", "hidden"], "what the run saw is not replayed"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"format": 9}, "baseline format 9"),
        ({"accepted": [{"check": "x"}]}, "`$.accepted[0]`"),
        ({"accepted": 3}, "`$.accepted`"),
    ],
)
def test_a_damaged_baseline_is_one_clear_line(tmp_path: Path, change: dict[str, object], complaint: str) -> None:
    path = tmp_path / "b.json"
    path.write_text(json.dumps({"format": 1, "accepted": []} | change))
    with pytest.raises(BadInput) as caught:
        load_baseline(path)
    assert complaint in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (Entry("no-such", "s", "why", some_case()), "no check is named"),
        (Entry(*FOUND.identity, " ", some_case()), "no reason"),
        (Entry("read-lineage", "attention*", "why", some_case()), "its case shows another finding"),
        (Entry(*FOUND.identity, "why", "missing.json"), "missing.json"),
    ],
)
def test_an_entry_has_a_known_check_a_reason_and_its_own_case(tmp_path: Path, entry: Entry, complaint: str) -> None:
    path = tmp_path / "b.json"
    path.write_bytes(pretty(Baseline(1, (entry,))))
    with pytest.raises(BadInput, match=complaint.replace(".", r"\.")):
        load_baseline(path)
