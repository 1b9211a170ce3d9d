"""The page on scripts has the keys that ``--json`` prints, and the files of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Set
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from orchestrator.cli import app, describe, doctor
from orchestrator.cli.doctor import Check
from orchestrator.cluster import preflight
from orchestrator.cluster.usage import Usage
from orchestrator.errors import DONE
from orchestrator.jobs import dashboard, submission
from orchestrator.jobs.job_state import Job
from orchestrator.promotion import retention
from orchestrator.promotion.audit_log import Event
from orchestrator.promotion.gate_results import GateResult
from orchestrator.reproduce.catalog import all_published
from orchestrator.storage import records
from orchestrator.storage.settings import NAMES
from tests.support import toy_published
from tests.support.readme_tree import ROOT
from workloads import catalog

PAGE = (ROOT / "docs" / "guide" / "scripting.md").read_text()
Typed = Callable[[str], Any]
KEYS, FILES = PAGE[PAGE.index("## Keys") :].split("## Files")
ROWS = re.findall(r"^\| (`.+?) \| (.+?) \| (.*?) ?\|$", KEYS, re.MULTILINE)
BASES = {"sweep": "run", "status JOB": "jobs"}
"""Rows, each with the row whose keys it also has."""


def words(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def documented(name: str) -> tuple[set[str], set[str]]:
    """The keys that an output always has, and the optional ones."""
    always, optional = next((always, optional) for label, always, optional in ROWS if label.startswith(name))
    base = BASES.get(name.strip("`"))
    named = words(always) - {base}
    return (named | documented(f"`{base}`")[0] if base else named), words(optional)


@pytest.fixture
def keys(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Typed]:
    """A function that runs a command line with ``--json`` and returns its output, which is one line of JSON."""
    monkeypatch.setitem(catalog.BUILT_IN, "toy", toy_published.ENTRY)
    monkeypatch.setenv(NAMES["tracking"][0], "none")
    all_published.cache_clear()

    def value(line: str) -> Any:
        assert app.run([*line.split(), "--json"]) == DONE, capsys.readouterr().err
        out = capsys.readouterr().out
        assert out.count("\n") == 1
        return json.loads(out)

    yield value
    all_published.cache_clear()


def check(name: str, printed: Any, params: Set[str] = frozenset()) -> Any:
    """Compare the keys of an object, or of the first in a list, with the page. Returns the object."""
    one = printed[0] if isinstance(printed, list) else printed
    always, optional = documented(name)
    got = {key for key in one if not key.startswith("params.")} - params
    assert always <= got, f"{name}: the page has more keys: {sorted(always - got)}"
    assert got <= always | optional, f"{name}: the page lacks keys: {sorted(got - always - optional)}"
    return one


def test_every_verb_with_json_is_on_the_scripting_page() -> None:
    verbs = typer.main.get_command(app.app).commands  # type: ignore[attr-defined]
    with_json = [name for name, verb in verbs.items() if "as_json" in {param.name for param in verb.params}]
    assert len(with_json) > 20
    assert [name for name in with_json if f"`{name}" not in KEYS] == []


@pytest.mark.usefixtures("no_page")
def test_documented_keys_and_files_match_real_runs(keys: Typed, tmp_path: Path) -> None:
    run = check("`run`", keys("run toy epochs=2 --local --name r"))
    space = f"{toy_published.__file__}:space"
    folder = Path(run["folder"])
    sweep = check("`sweep`", keys(f"sweep toy epochs=2 --local --name s --trials 2 --space {space}"))
    check("`status ID`", keys("status r"))
    check("`status ID`", keys("status s"))
    check("`status SWEEP/7`", keys("status s/1"))
    for row in keys("ls"):
        check("`ls`", row)
    view = check("`top`", keys("top"))
    for row in view["runs"]:
        check("`top`: `runs`", row)
    check("`best`", keys("best s"))
    for row in keys("best s --top 2"):
        check("`best`", row)
    comparison = check("`compare`", keys("compare s --by lr"))
    check("`compare`: `rows`", comparison["rows"], {"lr"})
    check("`accounts`", keys("accounts"), {"sweep"})
    check("`audit`", keys("audit synthetic"))
    check("`report`", keys(f"report r --output {tmp_path / 'r.html'}"))
    records.open_folder(Path(sweep["folder"])).update(status="interrupted", exit_code=130)
    assert check("`status ID`", keys("status s"))["search"]["target"] == 2
    check("`add`", keys("add s lr=0.1"))
    check("`clean`", keys("clean"))
    check("`reproduce run`", keys("reproduce run r --check"))
    check("`reproduce run --script`", keys("reproduce run r --script"))
    check("`reproduce run`", keys("reproduce run r"))
    named = re.findall(r"^\| (`.+?) \|", FILES, re.MULTILINE)
    for name in re.findall("`(.+?)`", " ".join(named)):
        held = any((place / name).exists() for place in (folder, Path(sweep["folder"])))
        assert held or name == "report.html", name  # no_page disables it: its plots take long
    recorded = json.loads((folder / "record.json").read_text())["result"]
    assert recorded == {key: value for key, value in run.items() if key != "folder"}


def test_documented_keys_match_plans_and_listings(keys: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    check("`plan`", keys("plan run toy --local"))
    monkeypatch.setattr(describe, "broken", lambda: {"theirs": "it has a bug"})
    for row in keys("workloads"):
        check("`workloads`", row)
    assert {"name", "section"} <= keys("workloads toy")[0].keys()
    check("`data list`", keys("data list"))
    monkeypatch.setattr(doctor, "CHECKS", (lambda _: [Check("disk", "ok", "enough")],))
    check("`doctor`: `checks`", check("`doctor`", keys("doctor"))["checks"])
    check("`reproduce SOURCE`", keys("reproduce toy"))
    check("`reproduce ID`", keys("reproduce toy-theory"))
    monkeypatch.setattr(preflight, "tracking", lambda _: None)
    monkeypatch.setattr(retention, "survey", lambda *_: retention.Survey((retention.Removable("m", "rec", "1"),), {}))
    check("`clean --models`", keys("clean --models"))


def test_documented_keys_match_jobs_and_promotions(
    keys: Typed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job("j", "running", None, "orchestrator run toy")
    jobs = SimpleNamespace(address="http://head", jobs=lambda: [job], job=lambda _: job, submit=lambda *_, **__: job)
    for module in (dashboard, submission):
        monkeypatch.setattr(module, "Dashboard", lambda _: jobs)
    assert app.run(["submit", "--no-wait", "--json", "--", "run", "toy"]) == DONE
    check("`submit`", json.loads(capsys.readouterr().out))
    check("`jobs`", keys("jobs"))
    check("`status JOB`", keys("status j"))
    check("`top`: `cluster`", asdict(Usage("head")))
    gate = asdict(GateResult("better", 1.0, 2.0, "pass"))
    event = Event("rec", "champion", "promote", "2", "1", "me", "2026-01-01T00:00:00+00:00", gates=(gate,)).to_json()
    check("`promote`: `gates`", check("`promote`, `rollback`, `promotions`", event)["gates"])
