"""MLflow's pages and the report of a sweep in a real browser."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from orchestrator.report.html import Section, Table, render
from tests.cluster.browser import CHROMIUM, Browser, browser
from tests.cluster.topology import User

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian: apt-get install chromium)")

TRIALS = 8
MODEL = "rec-synthetic"
VERSION_TAGS = 3
"""The epoch, and the sentence and the run of the last promotion."""


def test_mlflow_pages_and_report_show_a_sweep_and_its_model(
    user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ORCHESTRATOR_SCREENSHOTS=FOLDER the screenshots are saved there; docs/screenshots was made this way."""
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "recommender")
    search = ["sweep", "recommender", "dataset=synthetic", "epochs=12", "--space", "mf", "--trials", str(TRIALS)]
    sweep = user.submit(*search, "--scheduler", "none", "--concurrency", "2", "--name", "demo", "--register", MODEL)
    assert sweep.end() == 0, sweep.text()
    promoted = user.start("promote", MODEL, "--to", "champion")
    assert promoted.end() == 0, promoted.text()

    shots = Path(os.environ.get("ORCHESTRATOR_SCREENSHOTS") or tmp_path)
    experiment = user.mlflow().get_experiment_by_name("recommender").experiment_id
    (parent,) = user.mlflow().search_runs([experiment], "tags.`orchestrator.key` = 'demo'")
    runs = f"{user.topology.mlflow.uri}/#/experiments/{experiment}/runs"
    with browser(user.topology.mlflow.user, user.topology.mlflow.password) as chromium:
        see_runs(chromium, runs, shots / "mlflow-runs.png")
        see_run(chromium, f"{runs}/{parent.info.run_id}", shots / "mlflow-sweep.png")
        see_report(chromium, f"{runs}/{parent.info.run_id}/artifacts/report.html", shots / "mlflow-report.png")
        see_models(chromium, f"{runs.removesuffix('/runs')}/models", shots / "mlflow-models.png")
        (model,) = user.mlflow().search_logged_models([experiment])  # the page shows only the columns that fit
        assert {"test/ndcg_at_20", "test/recall_at_5"} <= {metric.key for metric in model.metrics or ()}
        see_model(chromium, f"{user.topology.mlflow.uri}/#/models", shots / "mlflow-registry.png")
        see_version(chromium, f"{user.topology.mlflow.uri}/#/models/{MODEL}/versions/1", shots / "mlflow-version.png")
        assert len(user.mlflow().get_model_version(MODEL, "1").tags) == VERSION_TAGS
        see_file(chromium, user.home / "storage" / "demo" / "report.html", shots / "report.png")
        assert chromium.complaints == []


def see_runs(chromium: Browser, address: str, shot: Path) -> None:
    """The sweep is one line of the table; its trials are below it."""
    page = chromium.page
    page.goto(address)
    parent = page.locator(".ag-cell").filter(has=page.get_by_role("link", name="demo", exact=True)).first
    expect(parent).to_be_visible()
    parent.get_by_role("button").first.click()
    for number in range(TRIALS):
        expect(page.get_by_role("link", name=re.compile(rf"^trial {number} "))).to_be_visible()
    chromium.shoot(shot)


def see_run(chromium: Browser, address: str, shot: Path) -> None:
    """The run's page shows its state, its description, the command that repeats it, and its trials."""
    page = chromium.page
    page.goto(address)
    expect(page.get_by_text("Finished", exact=True).first).to_be_visible()
    expect(page.get_by_text(re.compile(rf"Trials: {TRIALS} complete\. Winner: trial \d"))).to_be_visible()
    expect(page.get_by_text("orchestrator promote rec-synthetic --to champion")).to_be_visible()
    expect(page.get_by_text("orchestrator sweep recommender dataset=synthetic").first).to_be_visible()
    expect(page.get_by_role("link", name=re.compile("^trial 0 "))).to_be_visible()
    chromium.shoot(shot)


def see_report(chromium: Browser, address: str, shot: Path) -> None:
    """The report opens inside MLflow, with the plots."""
    page = chromium.page
    page.goto(address)
    for name in ("history.png", "parallel.png", "learning.png", "trials.csv"):
        expect(page.get_by_text(name, exact=True)).to_be_visible()
    report = page.frame_locator("iframe")
    expect(report.get_by_role("heading", name="demo")).to_be_visible()
    report.locator("figure svg").first.scroll_into_view_if_needed()
    chromium.shoot(shot)


def see_models(chromium: Browser, address: str, shot: Path) -> None:
    """The experiment's models have a name and their registered version."""
    page = chromium.page
    page.goto(address)
    expect(page.get_by_text("recommender-mf").first).to_be_visible()
    expect(page.get_by_role("link", name=re.compile(MODEL)).first).to_be_visible()
    chromium.shoot(shot)


def see_model(chromium: Browser, address: str, shot: Path) -> None:
    """The registry shows the model with its description, and its version with the alias."""
    page = chromium.page
    page.goto(address)
    page.get_by_role("button", name="Try it now").click()  # MLflow's welcome dialog
    page.get_by_role("link", name=MODEL, exact=True).click()
    expect(page.get_by_text("@ champion").first).to_be_visible()
    expect(page.get_by_text("Models of the workload recommender.")).to_be_visible()
    chromium.shoot(shot)


def see_version(chromium: Browser, address: str, shot: Path) -> None:
    """A version has a description, the sentence of its last promotion, and few tags."""
    page = chromium.page
    page.goto(address)
    expect(page.get_by_text("orchestrator.promotion", exact=True)).to_be_visible()
    chromium.shoot(shot)


def see_file(chromium: Browser, file: Path, shot: Path) -> None:
    """The report as a file: plots, and a table that a click sorts."""
    page = chromium.page
    page.goto(file.as_uri())
    expect(page.get_by_role("heading", name="demo", exact=True)).to_be_visible()
    assert page.locator("figure svg").count() >= 3
    page.locator("figure svg").first.scroll_into_view_if_needed()
    head = page.locator("th").filter(has=page.get_by_role("button", name="value")).first
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    page.locator("section").filter(has=page.locator("figure")).first.scroll_into_view_if_needed()
    chromium.shoot(shot)


def test_html_in_values_of_the_report_is_escaped(tmp_path: Path) -> None:
    attack = "<img src=x onerror='document.title=1'><script>document.title=1</script>"
    section = Section(attack, {attack: attack}, attack, tables=[Table([attack], [[attack]])], notes=[attack])
    (tmp_path / "report.html").write_text(render("A report", attack, [section]))
    with browser() as chromium:
        chromium.page.goto((tmp_path / "report.html").as_uri())
        expect(chromium.page.get_by_role("heading", name="A report")).to_be_visible()
        assert chromium.page.title() == "A report"
        assert chromium.page.locator("img").count() == 0
        assert chromium.complaints == []
