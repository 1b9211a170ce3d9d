"""The page of settings and lists in the first guide agree with the code."""

from __future__ import annotations

import re

import pytest

from orchestrator.config.plan import PLAN_KEYS
from orchestrator.report.listing import STATUSES
from orchestrator.storage.settings import NAMES, resolve
from tests.support.readme_tree import ROOT

GUIDE = ROOT / "docs" / "guide"
ROWS = {
    row[1]: row
    for row in re.finditer(
        r"^\| `(\w+)`(?: \(no key\))? \| `(\w+)` \| (.+?) \| .+ \|$",
        (GUIDE / "settings.md").read_text(),
        re.MULTILINE,
    )
}


def test_every_setting_has_a_row_with_its_variable() -> None:
    assert {name: row[2] for name, row in ROWS.items()} == {name: variable for name, (variable, _) in NAMES.items()}


def test_documented_defaults_match_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, _ in NAMES.values():
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.delenv("ORCHESTRATOR_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    settings = resolve()
    shown = {name: row[3].strip("`") for name, row in ROWS.items()}
    for name in ("queue", "priority", "collective_timeout", "start_timeout"):
        assert shown[name] == str(getattr(settings, name))
    for name in ("ray_address", "prices", "notify"):
        assert (shown[name], getattr(settings, name)) == ("none", None)
    home = "/home/somebody/.orchestrator"
    assert (str(settings.home), shown["home"]) == (home, "~/.orchestrator")
    assert (str(settings.storage), settings.tracking) == (f"{home}/storage", f"sqlite:///{home}/mlflow.db")
    assert str(settings.data) == "/home/somebody/.cache/orchestrator/data"


def test_the_guide_lists_the_keys_of_the_plan() -> None:
    text = (GUIDE / "first-run.md").read_text()
    listed = text[text.index("keys of the plan alike:") : text.index("`batch_size` is always")]
    assert set(re.findall(r"`(\w+)`", listed)) == set(PLAN_KEYS)


def test_the_guide_explains_the_states_that_are_listed() -> None:
    text = (GUIDE / "first-run.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", text[text.index("## States") :], re.MULTILINE) == list(STATUSES)
