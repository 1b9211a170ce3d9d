"""Reproduction of a published table by its command: interrupted, resumed and reused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Command, Store, typed

WORDS = (
    "reproduce",
    "thesis-4.2",
    "--dataset",
    "synthetic",
    "--method",
    "RNS",
    "--method",
    "DNS",
    "--quick",
    "--local",
)


def runs(home: Path) -> set[str]:
    return {file.parent.name for file in home.glob("storage/thesis-*/record.json")}


def kept(home: Path, name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((home / "reproductions" / name / "thesis-4.2.json").read_text())
    return told


@pytest.mark.faults
def test_a_table_goes_on_after_ctrl_c_and_is_not_run_twice(home: Path, database: Path) -> None:
    name = "thesis-4.2-synthetic-RNS-DNS-quick"
    first = Command(home, *WORDS)
    first.until(lambda: "synthetic mf DNS" in first.text())
    first.ctrl_c()
    assert first.end() == 130, first.text()
    before = runs(home)
    assert not (home / "reproductions").exists()

    second = typed(home, *WORDS)
    assert second.returncode == 0, second.stderr
    assert "(2 of them reused)" in second.stdout
    told = kept(home, name)
    assert before < runs(home)
    assert [len(row["metrics"]["ndcg_at_20"]["values"]) for row in told["rows"]] == [2, 2]
    assert all(run in runs(home) for row in told["rows"] for run in (row["search"], *row["runs"]))
    assert told["order"][0]["test"].startswith("paired t over 2 seeds")
    assert "mean nothing" in second.stdout

    everything = runs(home)
    third = typed(home, *WORDS, "--json")
    assert third.returncode == 0, third.stderr
    again = json.loads(third.stdout.splitlines()[-1])
    assert runs(home) == everything
    assert [row["metrics"] for row in again["rows"]] == [row["metrics"] for row in told["rows"]]

    store = Store(home)
    assert store.tag("orchestrator.kind").count("reproduction") == 1
    assert "thesis 4.5.2.1, table 4.2" in store.tag("orchestrator.reproduces")
    assert {file.suffix for file in home.glob("artifacts/**/thesis-4.2.*")} == {".json", ".md", ".csv"}


@pytest.mark.faults
@pytest.mark.long
def test_reproduction_of_a_whole_source_goes_on_after_ctrl_c_and_kill(home: Path) -> None:
    words = ("reproduce", "thesis", "--all", "--dataset", "synthetic", "--only", "thesis-5.3", "--quick", "--local")
    words = (*words, "--tracking", "none")
    states = home / "reproductions" / "thesis-all" / "states.json"

    def finished() -> dict[str, int]:
        files = home.glob("storage/thesis-*/record.json")
        return {f.parent.name: f.stat().st_mtime_ns for f in files if json.loads(f.read_text())["status"] == "finished"}

    first = Command(home, *words)
    first.until(lambda: len(finished()) >= 1)
    first.ctrl_c()
    assert first.end() == 130, first.text()
    second = Command(home, *words)
    second.until(lambda: len(finished()) >= 4)
    second.kill()
    second.end()
    before = finished()
    assert {block["state"] for block in json.loads(states.read_text())["blocks"]} == {"partial"}

    third = typed(home, *words, "--json")
    assert third.returncode == 0, third.stderr
    (block,) = json.loads(third.stdout.splitlines()[-1])["blocks"]
    assert (block["state"], {piece["state"] for piece in block["pieces"]}) == ("done", {"done"})
    after = finished()
    assert {name: after[name] for name in before} == before  # not run again
    assert (home / "reproductions" / "thesis-5.3-synthetic-mf-quick" / "thesis-5.3.json").exists()
