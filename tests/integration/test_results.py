"""Listing, best trial, accounts, report and comparison after a real sweep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import SPACES, typed


def answer(home: Path, *words: str) -> Any:
    """The JSON answer of a command that reads."""
    done = typed(home, *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.usefixtures("third_party")
def test_listings_reports_and_accounts_match_the_sweep(home: Path) -> None:
    space = f"{SPACES}:some_diverge"
    words = ("--local", "--tracking", "none", "--scheduler", "none", "--trials", "6", "--name", "told")
    done = typed(home, "sweep", "toy", "epochs=5", "--space", space, *words)
    assert done.returncode == 4, done.stderr

    (listed,) = answer(home, "ls")
    assert (listed["id"], listed["status"], listed["trials_done"], listed["trials_target"]) == ("told", "partial", 6, 6)
    best = answer(home, "best")
    rows = json.loads((home / "storage/told/trials.json").read_text())
    complete = [row for row in rows if row["state"] == "complete"]
    assert best["validation"]["error"] == min(row["value"] for row in complete)
    assert listed["value"] == best["test"]["error"]
    (spent,) = answer(home, "accounts")
    assert spent["cpu_hours"] > 0
    units = {row["trial"] for row in answer(home, "accounts", "--by", "trial")}
    assert units == {f"told trial {number}" for number in range(6)} | {"told winner"}
    page = (home / "storage/told/report.html").read_text()
    assert "train/loss is nan at epoch 3" in page
    assert "No importance: PED-ANOVA needs 4 complete trials, there are 3." in page
    assert page.count("<svg") >= 2

    again = typed(home, *best["command"].split()[1:], "--local", "--tracking", "none", "--name", "again")
    assert again.returncode == 0, again.stderr
    compared = answer(home, "compare", "told", "again")
    assert {row["mean"] for row in compared["rows"]} == {best["validation"]["error"]}
