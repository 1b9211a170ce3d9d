"""Two sweeps on one small Ray cluster: their shares of it, their exported metrics, and limits on GPUs."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.runs.prometheus import DEVICE_SECONDS, EPOCHS, SPOOL, TRIALS
from orchestrator.storage import run_lookup, usage_log
from orchestrator.storage.usage_log import Span
from tests.support.clusters import groups, logical
from tests.support.commands import SPACES, Start, starting
from tests.support.dashboard import PROMETHEUS, names
from tests.support.ports import free_port
from tests.support.waiting import until

CPUS, GPUS, EPOCHS_EACH = 4, 4, 5
SWEEP = ["sweep", "toy", "--space", f"{SPACES}:space", "--cpus-per-worker", "1", "--scheduler", "none"]
SWEEP += ["--gpus-per-worker", "0", "--sampler", "random", "--tracking", "none", f"epochs={EPOCHS_EACH}"]

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def port() -> int:
    """The port at which the cluster's only node exports metrics."""
    return free_port()


@pytest.fixture
def address(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with logical(monkeypatch, [{"num_cpus": CPUS, "num_gpus": GPUS, "metrics_export_port": port}]) as address:
        yield address


@pytest.fixture
def start(home: Path, address: str) -> Iterator[Start]:
    with starting(home, "--ray-address", address) as begin:
        yield begin


def scraped(port: int) -> Samples:
    """The samples of the node's endpoint, by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        text = response.read().decode()
    found: Samples = {}
    for line in text.splitlines():
        if match := re.fullmatch(r"([a-z_:]+)\{(.*)\} (\S+)", line, re.IGNORECASE):
            labels = frozenset(re.findall(r'(\w+)="([^"]*)"', match[2]))
            found[match[1], labels] = float(match[3])
    return found


def of(samples: Samples, metric: str, **labels: str) -> list[float]:
    """The values of one of the project's metrics that have these labels."""
    wanted = set(labels.items())
    return [value for (name, has), value in samples.items() if name == PROMETHEUS[metric] and wanted <= has]


def starts(spans: list[Span]) -> list[float]:
    return [span.start for span in spans if span.holder.startswith("trial")]


def stops(spans: list[Span]) -> list[float]:
    return [span.end for span in spans if span.holder.startswith("trial")]


def at_once(spans: list[Span], moment: float) -> int:
    return sum(span.start <= moment < span.end for span in spans if span.holder.startswith("trial"))


def test_two_sweeps_share_the_cluster_and_both_export_metrics(home: Path, start: Start, port: int) -> None:
    first = start(*SWEEP, "--name", "first", "--trials", "999", "slow=0.2")
    first.until(lambda: first.completed() >= CPUS)
    # A trial of the second sweep lasts so long that the sweep's second process starts during it, on a slow machine too.
    second = start(*SWEEP, "--name", "second", "--trials", "8", "slow=1")
    second.until(lambda: second.completed() >= 1)

    # The exported metrics, while both sweeps run.
    second.until(lambda: of(scraped(port), TRIALS, id="second", state="complete") >= [1.0])
    samples = scraped(port)
    known = {name for name, _ in samples}
    assert {name for name in names() if "gpu" not in name and "gram" not in name} <= known, "not exported"
    for sweep in ("first", "second"):
        about = {"id": sweep, "kind": "sweep", "workload": "toy"}
        (running,) = of(samples, TRIALS, **about, state="running")
        assert 0 <= running <= CPUS
        assert of(samples, SPOOL, **about) == [0.0]
        assert of(samples, EPOCHS, **about)[0] >= of(samples, TRIALS, **about, state="complete")[0] * EPOCHS_EACH
        assert of(samples, DEVICE_SECONDS, **about, device="cpus")[0] > 0
    top = start("top", "--json")
    assert top.end() == 0, top.text()
    seen = json.loads(top.text())
    assert {told["id"] for told in seen["runs"]} == {"first", "second"}
    assert (seen["cluster"]["nodes"], seen["cluster"]["total"]["CPU"]) == (1, CPUS)
    assert 0 < seen["cluster"]["used"]["CPU"] <= CPUS

    assert second.end() == 0, second.text()
    first.until(lambda: f"{CPUS} of {CPUS} at once: no other" in first.text())
    until(lambda: not of(scraped(port), TRIALS, id="second"), pause=0.1, why=lambda: "what ended is exported for ever")
    first.ctrl_c()
    assert first.end() == 130, first.text()
    assert groups() == []

    spans = {name: usage_log.spans(run_lookup.find(home / "storage", name)) for name in ("first", "second")}
    assert max(at_once(spans["second"], moment) for moment in starts(spans["second"])) == CPUS // 2, "its share: half"
    for trial in (span for span in spans["second"] if span.holder.startswith("trial")):
        # Five trials of the first sweep fit into one of the second. Between them none may run: their ends may coincide.
        assert any(trial.start < moment < trial.end for moment in starts(spans["first"])), "the first stopped"


def test_max_gpus_limits_the_trials_at_once(start: Start) -> None:
    asked = ["plan", *SWEEP, "--gpus-per-worker", "1", "--trials", "9", "--json"]
    at_once = []
    for most in ([], ["--max-gpus", "2"]):
        plan = start(*asked, *most)
        assert plan.end() == 0, plan.text()
        at_once.append(json.loads(plan.text())["at_once"])
    assert at_once == [GPUS, 2]
