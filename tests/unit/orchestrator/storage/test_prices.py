"""The price of device hours: parsing, costs in accounts and plans, and a budget by cost."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator import api
from orchestrator.config.spec import Resources
from orchestrator.errors import USAGE, UserError
from orchestrator.storage import prices
from orchestrator.storage.prices import Prices
from orchestrator.storage.settings import resolve
from orchestrator.storage.usage_log import UsageLog
from orchestrator.sweeps import request
from tests.support import finished
from tests.support.commands import SPACES, typed


def test_prices_are_parsed_and_costs_are_those_of_reserved_devices() -> None:
    found = prices.parse("EUR gpu=2.50, cpu=0.25")
    assert found == Prices(2.5, 0.25, "EUR")
    assert prices.parse("cpu=1e-2") == Prices(cpu=0.01)
    assert prices.parse("gpu=2.50, cpu=0.04") == Prices(2.5, 0.04)
    for each in (found, Prices(cpu=0.01), Prices(1e-7, 3.0)):
        assert prices.parse(str(each)) == each
    assert found.cost(gpu_hours=2, cpu_hours=4) == 6.0
    assert found.of_device_hour(Resources(workers=2, gpus_per_worker=1, cpus_per_worker=4)) == 2.5 + 4 * 0.25
    assert found.of_device_hour(Resources(cpus_per_worker=8)) == 0.25
    assert found.text(6) == "6.00 EUR"
    assert found.text(0.0042) == "0.004 EUR"
    assert found.text(0) == "0.00 EUR"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tpu=3", "Unknown device of the prices: got 'tpu'; allowed: cpu, gpu"),
        ("gpu=-1", "The price of a GPU hour is not valid: got '-1'; allowed: a number from 0"),
        ("gpu=nan", "The price of a GPU hour is not valid"),
        ("gpu=2.50 cpu=0.04", "The price of a GPU hour is not valid: got '2.50 cpu=0.04'"),
        ("EUR cpu", "The price of a CPU hour is not valid: got ''"),
    ],
)
def test_invalid_price_is_refused(text: str, words: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_PRICES", text)
    done = typed(home, "accounts")
    assert (done.returncode, words in done.stderr) == (USAGE, True), done.stderr


def test_accounts_have_the_cost(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = finished.run(home / "storage", "a", 0.5).path
    events = [
        {"time": 0, "event": "start", "unit": "run", "cpus": 4, "gpus": 2},
        {"time": 7200, "event": "stop", "unit": "run"},
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    assert UsageLog(folder).seconds() == {"cpus": 28800, "gpus": 14400}
    assert "COST" not in typed(home, "accounts").stdout
    monkeypatch.setenv("ORCHESTRATOR_PRICES", "EUR gpu=3,cpu=0.5")
    shown = [line.split() for line in typed(home, "accounts").stdout.splitlines()]
    assert shown[0] == ["RUN", "OR", "SWEEP", "GPU", "HOURS", "CPU", "HOURS", "COST", "RUNS"]
    assert shown[1][1:5] == ["4", "8", "16.00", "EUR"]
    assert json.loads(typed(home, "accounts", "--json").stdout)[0]["cost"] == 16.0


def test_a_plan_has_the_cost(home: Path, toy_workload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_PRICES", "EUR cpu=10")
    words = ("plan", "run", "toy", "epochs=4", "--local", "--probe", "--tracking=none", "--cpus-per-worker=2")
    forecast: dict[str, Any] = json.loads(typed(home, *words, "--json").stdout)
    assert forecast["cost_at_most"] == pytest.approx(10 * forecast["device_hours_at_most"])
    assert " EUR at most, about " in typed(home, *words).stdout


def test_a_maximum_cost_is_a_budget_of_device_hours(toy_workload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def planned(max_cost: float, said: io.StringIO | None = None, **search: Any) -> Any:
        out = said or io.StringIO()
        return request.sweep(
            "toy", resolve({"tracking": "none"}), overrides={"epochs": 2}, local=True, max_cost=max_cost,
            search={"space": f"{SPACES}:space", **search}, resources={"cpus_per_worker": 2}, say=out.write,
        )  # fmt: skip

    with pytest.raises(UserError, match=r"price of a CPU hour, which is not set: got 5. Set ORCHESTRATOR_PRICES"):
        planned(5)
    monkeypatch.setenv("ORCHESTRATOR_PRICES", "gpu=3")
    with pytest.raises(UserError, match="needs the price of a CPU hour"):
        planned(5)
    monkeypatch.setenv("ORCHESTRATOR_PRICES", "EUR cpu=0.5")
    said = io.StringIO()
    assert planned(5, said).search.max_device_hours == 10
    assert "A cost of 5.00 EUR pays for 10 CPU hours of the search" in said.getvalue()
    assert planned(5, max_device_hours=3.0).search.max_device_hours == 3
    with pytest.raises(UserError, match="The maximum cost is not valid: got 0"):
        planned(0)
    with pytest.raises(UserError, match=r"The maximum cost is not valid"):
        api.sweep("toy", max_cost=-1, space=f"{SPACES}:space", tracking="none")
