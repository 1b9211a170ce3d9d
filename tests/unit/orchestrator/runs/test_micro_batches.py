"""``accumulate=auto``: when the batch is split further, how far, and that nothing else changes."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import orchestrator
from orchestrator.cluster import preflight
from orchestrator.config.plan import Plan
from orchestrator.config.spec import ExperimentSpec, Resources
from orchestrator.engine import loop
from orchestrator.errors import RunFailed, UserError
from orchestrator.runs import micro_batches
from orchestrator.storage.settings import resolve
from orchestrator.sweeps import request
from tests.support.toy import Params, Toy
from workloads.memory import not_in_training
from workloads.recommender.batches import Batch
from workloads.recommender.workload import Recommender


def in_training(error: Exception) -> Exception:
    """Mark the error as the engine marks errors of a training epoch."""
    error.in_training = True  # type: ignore[attr-defined]
    return error


OUT = in_training(torch.OutOfMemoryError("CUDA out of memory"))


pytestmark = pytest.mark.usefixtures("toy_workload")


def spec(size: int = 8, accumulate: Any = "auto", **resources: Any) -> ExperimentSpec:
    params = Params(batch_size=size).model_dump()
    return ExperimentSpec(
        workload="toy", params=params, plan=Plan(accumulate=accumulate, refit=False), resources=Resources(**resources)
    )


@pytest.mark.parametrize(
    ("size", "resources", "expected"),
    [
        (8, {}, [2, 4, 8]),
        (12, {}, [2, 4, 12]),
        (160, {"workers": 2}, [2, 4, 8, 16, 40, 80]),
        (12, {"workers": 2}, [2, 6]),
        (24, {"workers": "1:3", "gpus_per_worker": 0}, [2, 4]),  # 2 or 3 workers may divide it
        (7, {}, [7]),
        (1, {}, []),
    ],
)
def test_number_of_micro_batches_at_least_doubles_and_divides_the_batch(
    size: int, resources: dict[str, Any], expected: list[int], tmp_path: Path
) -> None:
    one = spec(size, **resources)
    assert micro_batches.chosen(one, tmp_path / "new") == 1
    found = []
    while micro_batches.increase(one, tmp_path / "new", OUT):
        found.append(micro_batches.chosen(one, tmp_path / "new"))
    assert found == expected


@pytest.mark.parametrize(
    ("accumulate", "error", "split"),
    [
        ("auto", torch.OutOfMemoryError("CUDA out of memory"), True),
        ("auto", torch.AcceleratorError("CUDA error: out of memory"), True),
        ("auto", MemoryError(), True),
        ("auto", torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), False),
        ("auto", ValueError("out of memory"), False),
        (2, torch.OutOfMemoryError("CUDA out of memory"), False),
    ],
)
def test_only_an_out_of_memory_error_in_training_splits_a_batch(
    accumulate: Any, error: Exception, split: bool, tmp_path: Path
) -> None:
    one = spec(accumulate=accumulate)
    assert not micro_batches.increase(one, tmp_path, error), "outside of training"
    assert micro_batches.increase(one, tmp_path, in_training(error)) == split
    assert micro_batches.chosen(one, tmp_path) == (2 if split else 1 if accumulate == "auto" else 2)


def test_error_inside_not_in_training_is_not_marked_as_training_error() -> None:
    class Mining:
        def train_epoch(self, epoch: int) -> None:
            with not_in_training():
                raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError) as caught:
        loop.train(cast("Any", Mining()), spec().plan, 1)
    assert not caught.value.in_training  # type: ignore[attr-defined]


def test_training_mark_of_an_error_is_kept_by_pickling() -> None:
    assert pickle.loads(pickle.dumps(OUT)).in_training


def test_out_of_memory_in_an_evaluation_does_not_split_the_batch(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(self: Toy, split: str) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Toy, "evaluate", evaluate)
    with pytest.raises(RunFailed, match="out of memory"):
        orchestrator.run("toy", local=True, tracking="none", epochs=4, accumulate="auto", name="large")
    (folder,) = home.glob("*/large*")
    assert not (folder / micro_batches.FILE).exists()


def test_recommender_batch_is_split_until_it_fits_with_equal_metrics(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of the 1,024 interactions fits; the result is the same within rounding."""
    settings: dict[str, Any] = {
        "epochs": 2, "dataset": "synthetic", "dim": 8, "batch_size": 1024, "refit": False, "local": True,
        "tracking": "none",
    }  # fmt: skip
    plain = orchestrator.run("recommender", **settings)
    losses = Recommender._losses
    sizes = []

    def on_a_small_device(self: Recommender, part: Batch, *rest: Any) -> Any:
        sizes.append(len(part.rows))
        if len(part.rows) > 256:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return losses(self, part, *rest)

    monkeypatch.setattr(Recommender, "_losses", on_a_small_device)
    small = orchestrator.run("recommender", accumulate="auto", **settings)
    assert sizes[:3] == [1024, 512, 256]
    assert max(sizes[3:]) == 256
    assert small.metrics == pytest.approx(dict(plain.metrics), rel=1e-3)


def test_accumulate_of_a_trial_is_in_its_row_and_in_the_winners_outcome(home: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def space(trial):\n    return {'lr': trial.suggest_float('lr', 0.1, 0.2)}\n")
    found = orchestrator.sweep(
        "toy", local=True, tracking="none", epochs=4, accumulate="auto", fits=2, space=f"{tmp_path}/mine.py:space",
        trials=2, scheduler="none", refit=False,
    )  # fmt: skip
    assert list(found.trials().accumulate) == [4, 4]
    assert json.loads((found.folder / "winner" / "outcome.json").read_text())["accumulate"] == 4, "as the trial"


def test_run_that_splits_its_batches_has_the_same_metrics(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = orchestrator.run("toy", local=True, tracking="none", epochs=4)
    small = orchestrator.run("toy", local=True, tracking="none", epochs=4, accumulate="auto", fits=2, name="small")
    assert small.metrics == plain.metrics
    assert "accumulate=auto: 4 micro-batches for each batch" in capsys.readouterr().out
    assert json.loads((small.folder / "outcome.json").read_text())["accumulate"] == 4
    assert json.loads((small.folder / "record.json").read_text())["accumulate"] == 4


def test_run_fails_if_the_smallest_micro_batch_does_not_fit(home: Path) -> None:
    with pytest.raises(RunFailed, match=r"out of memory \(CUDA out of memory.*accumulate=auto, a smaller batch_size"):
        orchestrator.run("toy", local=True, tracking="none", epochs=4, accumulate="auto", fits=0)
    with pytest.raises(RunFailed, match="out of memory"):
        orchestrator.run("toy", local=True, tracking="none", epochs=4, fits=2)


@pytest.mark.parametrize(
    ("workload", "params", "reason"),
    [
        ("simclr", {}, "batch normalisation uses the statistics of a micro-batch"),
        ("recommender", {}, None),
        ("bi_encoder", {}, None),
    ],
)
def test_accumulate_auto_is_refused_only_where_the_result_would_change(
    workload: str, params: dict[str, Any], reason: str | None
) -> None:
    complete = preflight.parameters(workload, params)
    preflight.micro_batches(workload, complete, Plan(accumulate=2))
    if reason is None:
        preflight.micro_batches(workload, complete, Plan(accumulate="auto"))
        return
    with pytest.raises(UserError, match=reason):
        preflight.micro_batches(workload, complete, Plan(accumulate="auto"))


@pytest.mark.parametrize("accumulate", [2, "auto"])
@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"optimizer": "sgd"}, "optimizer=sgd takes one triple at a time"),
        ({"loss": "denoise_truncated"}, "loss=denoise_truncated ranks the losses of a whole batch"),
    ],
)
def test_a_batch_that_cannot_be_split_is_refused(params: dict[str, Any], reason: str, accumulate: Any) -> None:
    complete = preflight.parameters("recommender", params)
    with pytest.raises(UserError, match=f"{reason}.*got accumulate={accumulate}"):
        preflight.limits("recommender", complete, Resources(), Plan(accumulate=accumulate))


@pytest.mark.parametrize(
    ("workload", "params", "note"),
    [
        ("bi_encoder", {"dropout": 0.1}, "dropout=0.1 draws other masks"),
        ("bi_encoder", {"encoder": "minilm"}, "the encoder's own dropout draws other masks"),
        ("text_ranker", {"dropout": 0.2}, "dropout=0.2 draws other masks"),
        ("lifelong", {"dropout": 0.1}, "dropout=0.1 draws other masks"),
        ("vera", {}, "dropout=0.1 draws other masks"),
        ("vera", {"dropout": 0.0}, None),
        ("text_ranker", {}, None),
        ("bi_encoder", {"encoder": "minilm", "dropout": 0.0}, None),
        ("recommender", {}, None),
    ],
)
def test_preflight_notes_dropout_in_micro_batches_only_where_it_differs(
    workload: str, params: dict[str, Any], note: str | None
) -> None:
    complete = preflight.parameters(workload, params)
    assert preflight.micro_batches(workload, complete, Plan(accumulate=2)) is None
    shown = preflight.micro_batches(workload, complete, Plan(accumulate="auto"))
    assert shown == note or (note and note in (shown or ""))


def test_run_and_sweep_requests_print_the_note_on_dropout() -> None:
    lines: list[str] = []
    settings = resolve({"tracking": "none"})
    changed = {"accumulate": "auto", "dropout": "0.1"}
    request.experiment("bi_encoder", settings, overrides=changed, local=True, say=lines.append)
    request.sweep("bi_encoder", settings, overrides=changed, local=True, say=lines.append, search={"space": "tiny"})
    assert len(lines) == 2
    assert all("draws other masks in micro-batches" in line for line in lines)


@pytest.mark.parametrize("content", ["", "[]"])
def test_damaged_micro_batch_file_counts_as_absent(content: str, tmp_path: Path) -> None:
    (tmp_path / micro_batches.FILE).write_text(content)
    assert micro_batches.chosen(spec(), tmp_path) == 1
