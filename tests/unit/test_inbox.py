"""The file by which reports reach whoever waits for them on the same machine, while it is being written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from orchestrator.engine import EpochReport, Progress, Row
from orchestrator.session import Session
from orchestrator.spec import ExperimentSpec
from orchestrator.training import train, worker


def payload(epoch: int) -> dict[str, Any]:
    progress = Progress(epoch=epoch, best_epoch=1, best_value=0.1, best_metrics={"validation/error": 0.1})
    return worker.payload(EpochReport((Row(epoch, 1.5, {"train/loss": 1 / 3}),), progress, False, None))


def test_what_is_sent_is_received_once_and_whole(tmp_path: Path) -> None:
    file = tmp_path / "inbox"
    with file.open("w") as out, file.open() as inbox:
        assert list(worker.receive(inbox)) == []
        worker.send(out, payload(1))
        worker.send(out, payload(2))
        assert next(worker.receive(inbox)) == payload(1)
        assert list(worker.receive(inbox)) == [payload(2)]
        line = json.dumps(payload(3)) + "\n"
        out.write(line[:40])  # its writer is still at it
        out.flush()
        assert list(worker.receive(inbox)) == []
        out.write(line[40:])
        out.flush()
        assert list(worker.receive(inbox)) == [payload(3)]


def test_rows_that_a_dead_driver_did_not_read_are_delivered(tmp_path: Path) -> None:
    """Its run ended meanwhile, so nothing else would ever state them again."""
    (tmp_path / train.NAME).mkdir()
    with (tmp_path / train.NAME / train.INBOX).open("w") as out:
        worker.send(out, payload(1))
    (tmp_path / "outcome.json").write_text(json.dumps({"metrics": {}}))
    got: list[list[Row]] = []
    spec = ExperimentSpec(workload="toy", params={})
    assert train.follow(spec, tmp_path, tmp_path, cast(Session, None), got.append)
    assert got == [[Row(1, 1.5, {"train/loss": 1 / 3})]]
