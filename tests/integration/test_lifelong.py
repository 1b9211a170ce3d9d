"""Each session's model of a lifelong run is a version with its lineage, and each version searches its own index."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import orchestrator
from orchestrator.console import Console
from orchestrator.engine.loop import Row
from orchestrator.errors import RunFailed, UserError
from orchestrator.promotion import isolated_check
from orchestrator.promotion.alias_lock import Refusal
from orchestrator.promotion.aliases import Request, promote
from orchestrator.promotion.evidence import gather
from orchestrator.registry import models as registry
from orchestrator.registry import prediction
from orchestrator.runs import driver, worker
from orchestrator.storage import run_lookup
from orchestrator.storage.names import SEALED
from orchestrator.storage.settings import Settings, resolve
from workloads.contract import Evaluation, Workload

SMALL: dict[str, Any] = {
    "max_length": 16, "split_sessions": 2, "n_new": 2, "candidates": 8, "epochs": 4, "steps_per_epoch": 2, "lr": 1e-3,
}  # fmt: skip


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    file = tmp_path / "queries.csv"
    pd.DataFrame({"query": ["said0x1 said0x2"]}).to_csv(file, index=False)
    return file


def found(settings: Settings, model: str, queries: Path, **params: Any) -> int:
    """The number of documents that a model searches."""
    target = queries.with_suffix(".parquet")
    prediction.predict(settings, model, str(queries), str(target), {"k": 10_000, **params})
    return len(pd.read_parquet(target))


@pytest.mark.faults  # takes long
def test_each_session_is_a_version_that_searches_its_own_index(
    database: Path, tmp_path: Path, queries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed: list[int] = []

    def dies_once(folder: Path, workload: Workload, row: Row, evaluation: Evaluation | None) -> None:
        """The process fails at the end of session 1, so the session is repeated."""
        sealed.append(row.epoch)
        write(folder, workload, row, evaluation)
        if sealed == [2, 3]:
            raise OSError("the machine is gone")

    write = worker.write_sealed
    monkeypatch.setattr(worker, "write_sealed", dies_once)
    monkeypatch.setattr(isolated_check, "CALLS", 3)  # the mean time of a call is not tested
    index = tmp_path / "index"
    with pytest.raises(RunFailed, match="the machine is gone"):
        orchestrator.run("lifelong", local=True, register="search", name="first", index=str(index), **SMALL)
    settings = resolve()
    folder = run_lookup.find_here(settings.storage, "first")
    assert folder is not None
    assert driver.resume(folder, settings, Console()).extra["registered_version"] == "3"
    assert sealed[-2:] == [3, 4]
    assert not (folder.path / SEALED).exists()

    client = registry.client(settings)
    tags = [client.get_model_version("search", str(number)).tags for number in (1, 2, 3)]
    assert [tag["orchestrator.epoch"] for tag in tags] == ["2", "3", "4"]
    assert [tag["session"] for tag in tags] == ["0", "1", "2"]
    assert [tag.get("orchestrator.parent") for tag in tags] == [None, "1", "2"]
    assert len({tag["lineage"] for tag in tags}) == 1
    files = Path(tags[0]["index"])
    assert {tag["index"] for tag in tags} == {str(files)}
    assert files in index.iterdir()  # the failed process also left files

    promote(settings, Request("search", "champion", "2", force=True, reason="a test"))
    values = [gather(client, registry.version(client, "search", str(number))) for number in (1, 2, 3)]
    rows = [int(one.metrics["documents_embedded"]) for one in values]
    for name, count in zip(("search/1", "search@champion", "search/3"), rows):
        assert found(settings, name, queries) == count
    averages = [one.metrics["average_mrr_at_10"] for one in values]
    assert averages == sorted(set(averages))
    for one, average in zip(values, averages):
        assert one.units is not None
        assert one.units["average_mrr_at_10"].mean() == pytest.approx(average)

    with pytest.raises(UserError, match="which the model of session 0 cannot read"):
        found(settings, "search/1", queries, index=str(files))
    shutil.copyfile(files / "session-0001.arrow", files / "session-0002.arrow")
    with pytest.raises(Refusal, match=r"session-0002\.arrow is not the one that the model was registered with"):
        promote(settings, Request("search", "stable", "3", force=True, reason="a test"))
    assert found(settings, "search/1", queries) == rows[0]
