"""The coverage page is current, names only existing objects, and has a row for every stored or published result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import coverage_page
from tests.support.coverage_page import Part, Row


def test_coverage_page_is_current() -> None:
    assert coverage_page.PAGE.read_text(encoding="utf-8") == coverage_page.page(), f"run: {coverage_page.COMMAND}"


def test_coverage_rows_name_existing_objects_and_every_result_has_a_row() -> None:
    assert list(coverage_page.faults()) == []


RIGHT = Row(
    "Algorithm 2",
    "tested",
    ("workloads.sampling.bayesian:BNS",),
    ("workloads/sampling/test_samplers.py::test_bns_matches_reference_of_algorithm_2",),
    "orchestrator reproduce thesis-4.2",
    ("published/thesis-4.2-ml-100k-mf.md",),
)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (replace(RIGHT, code=("workloads.sampling.bayesian:BNT",)), "no workloads.sampling.bayesian:BNT"),
        (
            replace(RIGHT, test=("workloads/sampling/test_samplers.py::test_no",)),
            "no workloads/sampling/test_samplers.py",
        ),
        (replace(RIGHT, command="orchestrator reproduce thesis-4.20"), "no thesis-4.20 to reproduce"),
        (replace(RIGHT, command="python benchmarks/none.py"), "not a command"),
        (replace(RIGHT, results=("published/none.md",)), "no result published/none.md"),
        (replace(RIGHT, verdict="true"), "no verdict 'true'"),
        (replace(RIGHT, verdict="partly"), "partly without a reason"),
        (replace(RIGHT, verdict="upheld", test=(), results=()), "upheld without a result"),
        (replace(RIGHT, item="Algorithm 2 with LightGCN (ours)", verdict="upheld"), "no source claims it"),
    ],
)
def test_faulty_row_of_the_coverage_page_is_reported(row: Row, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_row(one: Row) -> list[str]:
        monkeypatch.setattr(coverage_page, "parts", lambda: (Part("one", (one,)),))
        return [text for text in coverage_page.faults() if text.startswith("Algorithm 2")]

    assert of_row(RIGHT) == []
    (found,) = of_row(row)
    assert fault in found


def test_stored_or_published_result_without_a_row_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "new.md").touch()
    monkeypatch.setattr(coverage_page, "RESULTS", tmp_path)
    assert "stored without a row: published/new.md" in list(coverage_page.faults())
    monkeypatch.setattr(coverage_page, "parts", lambda: ())
    assert "published without a row: thesis-4.2" in list(coverage_page.faults())
