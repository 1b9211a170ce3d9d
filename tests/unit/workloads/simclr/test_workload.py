"""The SimCLR workload: parameters, optimisers, batches, evaluation, refused input, and serving."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from orchestrator.config.plan import Plan
from orchestrator.engine.loop import Diverged, run_epochs
from orchestrator.search.spaces import presets
from tests.support.pictures import class_folders
from workloads import c_compiler, distributed
from workloads.contract import Runtime
from workloads.data import DataError, skipped_images_warning
from workloads.data.images.resident import ImageData, prepare
from workloads.encoders.optimisation import load_optimizer_state, optimizer_state, take_step
from workloads.losses.contrastive import alpha_from_auc
from workloads.simclr import data_checks
from workloads.simclr import workload as module
from workloads.simclr.batches import Batch, batches, steps_per_pass
from workloads.simclr.data_checks import loss_settings
from workloads.simclr.evaluation import evenly_spaced
from workloads.simclr.losses import FEATURES, LOSSES
from workloads.simclr.model import SimCLR as Model
from workloads.simclr.optim import TRUST, learning_rate, optimizer_of
from workloads.simclr.params import Params
from workloads.simclr.predictor import Predictor
from workloads.simclr.workload import SimCLR, is_compiled
from workloads.testing_distributed import run_on_ranks

RUNTIME = Runtime(device=torch.device("cpu"), data=Path(), seed=3, epochs=2)
TINY: dict[str, Any] = {"dataset_size": 8, "encoder": "tiny", "projection": 16, "batch_size": 256}


def _built(runtime: Runtime = RUNTIME, **params: Any) -> SimCLR:
    return SimCLR(Params(**{**TINY, **params}), runtime)


def test_default_parameters_follow_from_the_given_ones() -> None:
    assert (Params().encoder, Params().stem, Params().projection) == ("tiny", None, 128)
    real = Params(dataset="cifar-10", loss="bcl", optimizer="sgd")
    assert (real.encoder, real.momentum) == ("resnet18", 0.9)
    assert real.of_loss() == {"temperature": 0.5, "tau": "classes", "alpha": "auc", "beta": "classes", "ties": "le"}
    assert Params(subvector=32).projection is None
    assert Params(**real.model_dump()) == real


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": 1}, "batch_size=1 leaves an image no negatives"),
        ({"temperature": 0}, "greater than or equal to 0.001"),
        ({"temperature": 1e-40}, "greater than or equal to 0.001"),
        ({"subvector": 500}, "subvector=500 is more than the 128 features of encoder=tiny. Set it to at most 128"),
        ({"temperature": math.nan}, "finite number"),
        ({"loss": "hcl", "alpha": 0.9}, "alpha=0.9 has no effect with loss=hcl. Drop alpha, or set loss=bcl"),
        ({"momentum": 0.9}, "momentum=0.9 has no effect with optimizer=adam. Drop momentum, or set optimizer=sgd or"),
        ({"subvector": 8, "projection": 8}, "projection=8 has no effect with subvector=8"),
        ({"encoder": "tiny", "stem": "cifar"}, "stem=cifar has no effect with encoder=tiny"),
        ({"loss": "bcl", "beta": 2.0}, r"beta=2 of loss=bcl is not in \[0, 1\]"),
        ({"loss": "bcl", "alpha": 0.4}, r"alpha=0.4 of loss=bcl is not in \[0.5, 1\]"),
        ({"loss": "dcl", "tau": 1.0}, r"tau=1 of loss=dcl is not in \[0, 1\)"),
        ({"crop": 0}, "greater than 0"),
        (
            {"method": "byol", "loss": "bcl"},
            "loss=bcl has no effect with method=byol. Drop loss, or set method=",
        ),
        ({"method": "byol", "temperature": 0.1}, "temperature=0.1 has no effect with method=byol"),
        (
            {"queue": 512},
            "queue=512 has no effect with method=simclr. Drop queue, or set method=moco or",
        ),
        (
            {"method": "moco", "predictor": 8},
            "predictor=8 has no effect with method=moco. Drop predictor",
        ),
        ({"method": "moco", "clusters": 8}, "clusters=8 has no effect with method=moco"),
        (
            {"method": "moco", "queue": 128},
            "queue=128 is shorter than batch_size=256, whose keys enter it",
        ),
        (
            {"method": "protonce", "instance_weight": 0},
            "instance_weight=0 leaves no loss in the epochs of",
        ),
        ({"method": "mocco"}, "'simclr', 'moco', 'byol' or 'protonce'"),
    ],
)
def test_bad_parameters_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Params(**given)


@pytest.mark.parametrize(
    ("params", "runtime", "message"),
    [
        ({"batch_size": 2048}, {}, "batch_size=2048 is more than the 920 training images"),
        ({"batch_size": 255}, {"world_size": 2}, "does not divide over 2 worker.s. x accumulate=1; the"),
        ({"batch_size": 10}, {"accumulate": 4}, "does not divide over 1 worker.s. x accumulate=4; .* is 8"),
        ({"method": "moco", "batch_size": 4}, {"accumulate": 4}, "one image in a part of batch_size=4.* accumulate=1$"),
        (
            {"method": "protonce", "clusters": 300},
            {},
            "clusters=300 with granularities=3 makes 1200 prototypes",
        ),
    ],
)
def test_batch_sizes_and_clusters_that_cannot_be_trained_are_refused(
    params: dict[str, Any], runtime: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _built(replace(RUNTIME, **runtime), **params)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_part_too_small_to_be_evaluated_is_refused(split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(*args: Any, **kwargs: Any) -> ImageData:
        data = prepare(*args, **kwargs)
        part = getattr(data, split)
        return replace(data, **{split: replace(part, rows=part.rows[:1], labels=part.labels[:1])})

    monkeypatch.setattr(module, "prepare", cut)
    with pytest.raises(ValueError, match=f"has 1 images in its {split} part, which cannot be evaluated"):
        _built()


@pytest.mark.parametrize(
    ("params", "holdout", "message"),
    [
        (
            {"batch_size": 921},
            True,
            "batch_size=921 is more than the 920 training images of dataset 'synthetic-images'",
        ),
        ({"batch_size": 1025}, False, "batch_size=1025 is more than the 1024 training images"),
        ({"batch_size": 920}, True, None),
        ({"batch_size": 1024}, False, None),
        ({"dataset": "cifar-10", "batch_size": 60_000}, True, None),
    ],
)
def test_too_few_images_are_refused_before_a_start(params: dict[str, Any], holdout: bool, message: str | None) -> None:
    """Datasets of the catalogue are large and are not decoded for this check."""
    with pytest.raises(ValueError, match=message) if message else nullcontext():
        Params(**params).check_data(Path(), holdout=holdout)


def test_objective_of_a_classifier_that_validation_does_not_fit_is_refused() -> None:
    Params().check_objectives(["knn_top1", "alignment"])
    Params(eval_probe="always").check_objectives(["probe_top5"])
    both = "eval_probe=always and probe_dataset"
    for metric, needed in (("probe_top1", "eval_probe=always"), ("transfer_top1", both)):
        with pytest.raises(ValueError, match=rf"no {metric} without {needed}\. Set {needed}, or another objective"):
            Params().check_objectives(["knn_top1", metric])
    with pytest.raises(ValueError, match=r"no transfer_top1 without probe_dataset\. Set probe_dataset"):
        Params(eval_probe="always").check_objectives(["transfer_top1"])


def test_dataset_with_too_few_classes_or_images_is_refused_before_a_start(tmp_path: Path) -> None:
    class_folders(tmp_path / "pictures", {"a": 20})
    one = {"dataset": str(tmp_path / "pictures"), "batch_size": 4, "encoder": "tiny"}
    with pytest.raises(ValueError, match=r"tau=classes needs a dataset of several classes, .* has 1"):
        Params(**one, loss="bcl").check_data(tmp_path)
    Params(**one).check_data(tmp_path)
    class_folders(tmp_path / "few", {"a": 8})
    few = Params(**{**one, "dataset": str(tmp_path / "few")})
    with pytest.raises(ValueError, match="has 1 images in its validation part, which cannot be evaluated"):
        few.check_data(tmp_path)
    class_folders(tmp_path / "single", {"a": 1, "b": 1})
    single = Params(**{**one, "dataset": str(tmp_path / "single"), "batch_size": 2})
    with pytest.raises(ValueError, match="no class has two labelled images"):
        single.check_data(tmp_path)


@pytest.mark.slow
def test_data_check_does_not_import_pytorch() -> None:
    code = (
        "from pathlib import Path; from workloads.simclr.params import Params; Params().check_data(Path()); import sys"
    )
    assert subprocess.run([sys.executable, "-c", f"{code}; sys.exit('torch' in sys.modules)"]).returncode == 0


@pytest.mark.faults  # a long test
def test_trials_of_many_shapes_in_one_process_stay_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch limits the number of compilations of a function; modules of earlier trials must not count."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    with torch._dynamo.config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True):
        for projection in (4, 5, 6, 7):
            built = _built(compile=True, projection=projection)
            built.replica(torch.zeros(2, 3, 8, 8))


def test_images_that_were_skipped_are_counted_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*args: Any, **kwargs: Any) -> ImageData:
        return replace(prepare(*args, **kwargs), skipped=("cat/7.png", "dog/1.png"))

    monkeypatch.setattr(module, "prepare", damaged)
    built = _built(dataset_corrupt="skip")
    assert built.train_epoch(1)["skipped"] == 2
    assert built.evaluate("validation").tables["skipped"]["image"].tolist() == ["cat/7.png", "dog/1.png"]


@pytest.mark.slow
def test_skipped_images_of_the_probe_dataset_are_counted_and_named(tmp_path: Path) -> None:
    class_folders(tmp_path / "pictures", {"a": 4, "b": 4})
    (tmp_path / "pictures" / "b" / "1.png").write_bytes(b"")
    params = {**TINY, "probe_dataset": str(tmp_path / "pictures"), "dataset_corrupt": "skip"}
    built = _built(**params)
    assert built.train_epoch(1)["skipped"] == 1
    (name,) = built.evaluate("validation").tables["skipped"]["image"]
    for size in (TINY["dataset_size"], None):
        told = skipped_images_warning({"dataset": "synthetic-images", **params, "dataset_size": size}, tmp_path)
        assert told == f"Warning: 1 image cannot be decoded and is left out: {name}"
    own = {**params, "dataset": str(tmp_path / "pictures")}
    assert skipped_images_warning(own, tmp_path) == told, "the same images are counted once"


def test_loss_defaults_follow_from_the_number_of_classes() -> None:
    def settings(params: Params, classes: int) -> dict[str, Any]:
        return loss_settings(params.dataset, params.of_loss(), classes)

    found = settings(Params(loss="bcl"), classes=10)
    assert found == {"temperature": 0.5, "tau": 0.1, "alpha": "auc", "beta": 0.9, "ties": "le"}
    assert settings(Params(loss="bcl", tau=0.2, beta=0.5), classes=10)["tau"] == 0.2
    with pytest.raises(ValueError, match="tau=classes needs a dataset of several classes, 'cifar-10' has 1"):
        settings(Params(dataset="cifar-10", loss="dcl"), classes=1)
    assert settings(Params(dataset="cifar-10"), classes=0) == {"temperature": 0.5}


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_every_loss_falls_in_training(loss: str) -> None:
    built = _built(loss=loss, batch_size=128, lr=3e-3, eval_probe="never")
    rows = [built.train_epoch(epoch) for epoch in (1, 2)]
    assert rows[1]["loss"] < rows[0]["loss"]
    assert rows[0]["negatives"] == 254
    assert rows[0]["temperature"] == 0.5
    reported = {"tau", "beta"} if loss == "hcl" else {"tau"} if loss == "dcl" else set()
    reported = {"tau", "alpha", "beta"} if loss == "bcl" else reported
    assert rows[0].keys() - {"loss", "learning_rate", "negatives", "temperature"} == reported


@pytest.mark.parametrize("temperature", [0.5, 0.1])
def test_loss_is_nt_xent_over_all_views_as_anchors(temperature: float) -> None:
    """The reference is cross entropy over all 2b anchors, since second views are anchors, too. Thesis 2.2.4.1."""
    pairs = nn.functional.normalize(torch.randn(6, 2, 16, generator=torch.Generator().manual_seed(1)), dim=2)
    views = torch.cat([pairs[:, 0], pairs[:, 1]])
    logits = (views @ views.T / temperature).fill_diagonal_(-torch.inf)
    other = (torch.arange(12) + 6) % 12
    each = nn.functional.cross_entropy(logits, other, reduction="none")
    assert each[:6].mean() != pytest.approx(each[6:].mean().item(), rel=1e-3)  # the views' means differ
    found = _built().method.loss(pairs, {"temperature": temperature})
    assert found.item() == pytest.approx(each.mean().item(), rel=1e-5)


def test_directclr_embedding_is_the_normalised_first_features() -> None:
    """Without a head, the embedding is the direction of the first d features of the encoder. Thesis 2.2.4.2."""
    model = Model(Params(encoder="tiny", subvector=8), 3).eval()
    images = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    features = model.encoder(images)
    assert features.shape == (5, 128)
    expected = features[:, :8] / features[:, :8].square().sum(1, keepdim=True).sqrt()
    torch.testing.assert_close(model(images), expected)
    torch.testing.assert_close(model.project(features), expected)


def test_alpha_is_calibrated_by_the_auc_of_validation() -> None:
    built = _built(loss="bcl")
    before = built.evaluate("validation").metrics["auc"]
    assert built.train_epoch(1)["alpha"] == alpha_from_auc(before)
    assert _built(loss="bcl", alpha="auc_literal").train_epoch(1)["alpha"] == max(0.5, before)
    assert _built(loss="bcl", alpha=0.8).train_epoch(1)["alpha"] == 0.8


def test_ties_parameter_changes_the_loss_of_equal_embeddings() -> None:
    """For equal embeddings, ties=le gives negatives about half the weight of ties=mid."""
    losses = []
    for ties in ("le", "mid"):
        built = _built(loss="bcl", alpha=0.9, beta=0.5, ties=ties)
        equal = nn.functional.normalize(torch.ones(256, 2, 16), dim=2)
        losses.append(built.method.loss(equal, built.settings).item())
    assert losses[0] < losses[1] - 0.4
    assert "ties" not in _built(loss="bcl", ties="mid").train_epoch(1)


@pytest.mark.parametrize(
    ("params", "side", "stem"),
    [({}, 32, "cifar"), ({"dataset_size": 96}, 96, "imagenet"), ({"dataset_size": 96, "view_size": 32}, 32, "cifar"),
     ({"dataset_size": 96, "stem": "cifar"}, 96, "cifar")],
)  # fmt: skip
def test_large_views_use_the_imagenet_stem_by_default(params: dict[str, Any], side: int, stem: str) -> None:
    built = SimCLR(Params(encoder="resnet18", **params), RUNTIME)
    assert (built.params.stem, built.recipe.size) == (stem, side)
    assert built.model.encoder.layers.conv1.kernel_size == ((7, 7) if stem == "imagenet" else (3, 3))


@pytest.mark.slow
def test_views_may_be_smaller_than_the_images() -> None:
    built = _built(dataset_size=24, view_size=12, batch_size=128)
    (batch, *_) = batches(built.data.train, built.recipe, 128, RUNTIME, 1)
    assert batch.views(built.recipe, torch.contiguous_format).shape == (256, 3, 12, 12)
    assert built.train_epoch(1)["loss"] > 0
    assert built.evaluate("validation").metrics["knn_top1"] > 0
    assert built.servable().config["size"] == 24


@pytest.mark.parametrize(("size", "at_once"), [(8, 512), (32, 512), (64, 128), (96, 56), (224, 32)])
def test_encoding_batch_size_falls_with_the_image_size(
    size: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = _built()
    seen: list[int] = []
    built.data = replace(built.data, size=size)
    hook = lambda _module, given: seen.append(len(given[0]))  # noqa: E731
    built.model.encoder.register_forward_pre_hook(hook)
    built.features(built.data.train, torch.arange(520))
    assert seen[0] == at_once
    assert sum(seen) == 520


@pytest.mark.parametrize(("asked", "encoder", "resets"), [(True, "tiny", 1), (None, "tiny", 0), (False, "resnet18", 0)])
def test_compiler_is_reset_before_a_model_is_compiled(
    asked: bool | None, encoder: str, resets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: called.append("reset"))
    monkeypatch.setattr(torch, "compile", lambda model, **options: called.append("compile") or model)
    _built(compile=asked, encoder=encoder)
    assert called == ["reset", "compile"] * resets


@pytest.mark.parametrize(
    ("asked", "encoder", "device", "workers", "expected"),
    [
        (None, "resnet18", "cuda", 1, True), (None, "resnet18", "cuda", 2, False), (True, "resnet18", "cuda", 2, True),
        (False, "resnet18", "cuda", 1, False), (None, "tiny", "cuda", 1, False), (None, "resnet18", "cpu", 1, False),
    ],
)  # fmt: skip
def test_resnet_is_compiled_by_default_only_on_one_gpu(
    asked: bool | None, encoder: str, device: str, workers: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = replace(RUNTIME, device=torch.device(device), world_size=workers)
    params = Params(encoder=encoder, compile=asked, projection=4)
    monkeypatch.setattr(module, "has_compiler", lambda: True)
    assert is_compiled(params, runtime) == expected
    monkeypatch.setattr(module, "has_compiler", lambda: False)
    assert is_compiled(params, runtime) == bool(asked), "without a C compiler, compilation needs compile=True"


def test_a_compiler_needs_the_headers_of_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(c_compiler.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(c_compiler.shutil, "which", lambda name: name == "gcc")
    assert not c_compiler.has_compiler()
    (tmp_path / "Python.h").write_text("")
    assert c_compiler.has_compiler()
    monkeypatch.setattr(c_compiler.shutil, "which", lambda name: None)
    assert not c_compiler.has_compiler()


@pytest.mark.faults
@pytest.mark.long
def test_loss_of_a_compiled_resnet_on_two_workers_equals_one_worker() -> None:
    """Two steps at 32 pixels; on two workers the model is compiled inside DDP."""
    alone = _resnet(RUNTIME, None).train_epoch(1)["loss"]
    losses = run_on_ranks(_train_resnet)
    assert losses[0] == losses[1] == pytest.approx(alone, rel=1e-3)


def _train_resnet(rank: int) -> float:
    runtime = replace(RUNTIME, rank=rank, world_size=2, broadcast=distributed.broadcast)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
        workload = _resnet(runtime, True)
        assert isinstance(workload.replica, DistributedDataParallel)
        assert workload.model._compiled_call_impl is not None
        return workload.train_epoch(1)["loss"]


def _resnet(runtime: Runtime, asked: bool | None) -> SimCLR:
    params = Params(dataset_size=32, encoder="resnet18", projection=8, batch_size=8, compile=asked)
    return SimCLR(params, replace(runtime, steps_per_epoch=2))


def test_training_with_hcl_does_not_depend_on_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    first = _built(loss="hcl").train_epoch(1)

    def relabelled(*args: Any, **kwargs: Any) -> ImageData:
        data = prepare(*args, **kwargs)
        return replace(data, train=replace(data.train, labels=data.train.labels.flip(0)))

    monkeypatch.setattr(module, "prepare", relabelled)
    assert _built(loss="hcl").train_epoch(1) == first


def test_refit_trains_on_all_images_and_has_no_validation_split() -> None:
    built = _built(replace(RUNTIME, holdout=False), loss="bcl")
    assert len(built.data.train) == 1024
    assert 0.5 <= built.train_epoch(1)["alpha"] <= 1
    with pytest.raises(ValueError, match="a refit has no validation split"):
        built.evaluate("validation")


def test_evaluation_has_units_and_tables_consistent_with_its_metrics() -> None:
    found = _built(eval_probe="always").evaluate("test")
    assert list(found.units) == ["id", "knn_top1", "knn_top5", "probe_top1", "probe_top5"]
    for name, column in list(found.units.items())[1:]:
        assert len(column) == 512
        assert found.metrics[name] == pytest.approx(column.mean())
    assert found.metrics["knn_top5"] >= found.metrics["knn_top1"] > 1 / 8
    assert list(found.tables["scores"]) == ["score", "true_negatives", "false_negatives"]
    assert {len(column) for column in found.tables["plane"].values()} == {512}
    assert set(found.tables["plane"]["label"]) <= set(_built().data.classes)


@pytest.mark.slow
def test_transfer_accuracy_on_the_training_dataset_equals_probe_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classifier is fitted to the training images at their training size and evaluated on the test part."""
    built = _built(probe_dataset="synthetic-images")
    found = built.evaluate("test").metrics
    assert found["transfer_top1"] == found["probe_top1"]
    assert found["transfer_top5"] == found["probe_top5"]
    assert "transfer_top1" not in built.evaluate("validation").metrics
    with pytest.raises(ValidationError, match="probe_dataset=synthetic-images has no effect with eval_probe=never"):
        Params(probe_dataset="synthetic-images", eval_probe="never")
    with pytest.raises(ValidationError, match="holds another kind of data"):
        Params(probe_dataset="ml-100k")
    with pytest.raises(DataError, match="cifar-10-subset"):
        Params(probe_dataset="cifar-10-subset").check_data(Path("/nowhere"))


@pytest.mark.slow
@pytest.mark.parametrize("holdout", [True, False])
def test_unusable_probe_dataset_is_refused_with_its_name(tmp_path: Path, holdout: bool) -> None:
    class_folders(tmp_path / "single", {"a": 1, "b": 1})
    class_folders(tmp_path / "damaged", {"a": 4, "b": 4})
    (tmp_path / "damaged" / "b" / "1.png").write_bytes(b"")
    class_folders(tmp_path / "enough", {"a": 4, "b": 4})
    too_few = "no class has two labelled images" if holdout else "has no labelled image in its test part"
    runtime = replace(RUNTIME, holdout=holdout)
    for name, message in (("single", too_few), ("damaged", "an image cannot be decoded: got .*b/1.png")):
        given: dict[str, Any] = {"probe_dataset": str(tmp_path / name)}
        expected = f"probe_dataset={tmp_path / name}:? {message}"
        with pytest.raises(ValueError, match=expected):
            Params(**TINY, **given).check_data(tmp_path, holdout)
        with pytest.raises(ValueError, match=expected):
            _built(runtime, **given)
    Params(**TINY, probe_dataset=str(tmp_path / "enough")).check_data(tmp_path, holdout)
    assert _built(runtime, probe_dataset=str(tmp_path / "enough")).evaluate("test").metrics["transfer_top1"] >= 0


def test_evaluation_warns_of_collapsed_features() -> None:
    built = _built()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        healthy = built.evaluate("validation").metrics["rankme"]
    assert healthy > 1.5
    with torch.no_grad():  # the last normalisation gives every image the same features
        built.model.encoder.layers[-4].weight.zero_()
        built.model.encoder.layers[-4].bias.fill_(1.0)
    with pytest.warns(UserWarning, match="have collapsed: their effective rank is 1.00 of 128"):
        assert built.evaluate("validation").metrics["rankme"] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"encoder": "resnet17"}, "'resnet50' or 'timm/NAME'"),
        ({"encoder": "timm/vit_tiny_patch16_224", "stem": "cifar"}, "stem=cifar has no effect with encoder=timm/vit"),
        ({"encoder_weights": "weights.safetensors"}, "a path of a file must be absolute. Use /"),
    ],
)
def test_invalid_encoder_settings_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Params(**given)


def test_missing_timm_or_weights_file_is_refused_before_a_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(data_checks, "find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"needs the package timm, which is not installed. Install it: pip .*\[images\]"
    ):
        Params(encoder="timm/resnet10t").check_data(tmp_path)
    with pytest.raises(ValueError, match="is not a file on this machine"):
        Params(encoder_weights="/none.safetensors").check_data(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "empty", "text"])
def test_damaged_weights_are_refused_before_a_start(damage: str, tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    save_file({"weight": torch.zeros(64)}, file)
    Params(encoder_weights=str(file)).check_data(tmp_path)
    whole = file.read_bytes()
    file.write_bytes({"cut": whole[:-8], "empty": b"", "text": b"<html>" * 9}[damage])
    with pytest.raises(ValueError, match=f"encoder_weights={file} cannot be read as a safetensors file: "):
        Params(encoder_weights=str(file)).check_data(tmp_path)


def test_check_of_encoder_weights_does_not_import_pytorch(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    save_file({"weight": torch.zeros(64)}, file)
    code = f"from workloads.simclr.data_checks import check_encoder; check_encoder(None, {str(file)!r}); import sys"
    assert subprocess.run([sys.executable, "-c", f"{code}; sys.exit('torch' in sys.modules)"]).returncode == 0


def test_a_vit_of_timm_is_trained_and_served(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    small = {"encoder": "timm/vit_tiny_patch16_224", "dataset_size": 32, "view_size": 16, "batch_size": 64}
    built = _built(replace(RUNTIME, steps_per_epoch=1), **small, eval_probe="never")
    built.train_epoch(1)
    exported = built.servable()
    assert "timm" in exported.requirements
    weights = {name: value.numpy() for name, value in exported.weights.items()}
    answer = Predictor(weights, dict(exported.config)).predict(pd.DataFrame({"image": exported.example["image"]}))
    expected = built.features(built.data.train, torch.arange(2))
    np.testing.assert_allclose(np.stack(answer["embedding"]), expected.numpy(), rtol=1e-3, atol=1e-4)

    file = tmp_path / "vit.safetensors"
    own = {name.removeprefix("encoder."): value for name, value in exported.weights.items()}
    save_file({name: value.contiguous() for name, value in own.items()}, file)
    again = _built(**small, encoder_weights=str(file), eval_probe="never")
    assert torch.equal(again.model.encoder.layers.cls_token, built.model.encoder.layers.cls_token)
    with pytest.raises(ValueError, match="subvector=193 is more than the 192 features of encoder=timm/vit_tiny"):
        _built(**{**small, "projection": None}, subvector=193)


def test_nan_weights_give_zero_accuracy_and_no_plane() -> None:
    built = _built(eval_probe="always")
    with torch.no_grad():
        next(built.model.encoder.parameters()).fill_(torch.nan)
    found = built.evaluate("validation")
    assert {found.metrics[name] for name in ("knn_top1", "knn_top5", "probe_top1", "probe_top5")} == {0.0}
    assert not math.isfinite(found.metrics["alignment"])
    assert list(found.tables) == ["scores"]


def test_diverging_run_raises_diverged() -> None:
    wild = _built(optimizer="sgd", lr=100, weight_decay=1, schedule="constant", batch_size=64)
    with pytest.raises(Diverged, match="is nan at epoch"):
        list(run_epochs(wild, Plan(epochs=4)))


def test_a_resnet_has_the_listed_number_of_features() -> None:
    assert Model(Params(encoder="resnet18"), seed=0).features == FEATURES["resnet18"]


@pytest.mark.parametrize("preset", sorted(presets("simclr")))
def test_every_preset_builds_a_model_at_both_ends_of_its_ranges(preset: str) -> None:
    """Builds the model at the low and the high end of all ranges."""
    for end in ("low", "high"):
        drawn = presets("simclr")[preset](_End(end))
        assert Params(**drawn, encoder="resnet18").encoder == "resnet18"
        assert Model(Params(**drawn, encoder="tiny"), seed=0).features == FEATURES["tiny"]


class _End:
    """A stand-in for a trial that suggests the low or the high end of each range."""

    def __init__(self, end: str) -> None:
        self.end = end

    def suggest_float(self, name: str, low: float, high: float, log: bool = False) -> float:
        return low if self.end == "low" else high

    def suggest_int(self, name: str, low: int, high: int, log: bool = False) -> int:
        return low if self.end == "low" else high

    def suggest_categorical(self, name: str, choices: list[Any]) -> Any:
        return choices[0 if self.end == "low" else -1]


@pytest.mark.slow
def test_probe_is_fitted_only_for_the_splits_of_eval_probe() -> None:
    asked = {when: _built(eval_probe=when) for when in ("always", "test", "never")}
    fitted = {
        (when, split): "probe_top1" in built.evaluate(split).metrics  # type: ignore[arg-type]
        for when, built in asked.items()
        for split in ("validation", "test")
    }
    assert {place for place, there in fitted.items() if there} == {
        ("always", "validation"), ("always", "test"), ("test", "test"),
    }  # fmt: skip
    assert "classifier.weight" not in asked["never"].servable().weights


@pytest.mark.slow
def test_bf16_is_close_to_fp32() -> None:
    whole, half = (_built(replace(RUNTIME, precision=precision)) for precision in ("fp32", "bf16"))
    assert half.train_epoch(1)["loss"] == pytest.approx(whole.train_epoch(1)["loss"], rel=2e-3)
    assert {value.dtype for value in half.state_dict()["model"].values()} == {torch.float32, torch.int64}


def test_batches_of_two_ranks_concatenate_to_the_batch_of_one() -> None:
    """Images and draws of two ranks equal those of one; micro-batches of a rank equal those of its batch."""
    built = _built()
    part, recipe = built.data.train, built.recipe

    def steps(rank: int, world: int) -> list[Batch]:
        return list(batches(part, recipe, 128, replace(RUNTIME, rank=rank, world_size=world, steps_per_epoch=9), 2))

    alone, shares = steps(0, 1), [steps(rank, 2) for rank in range(2)]
    assert len(alone) == 9
    layout = torch.contiguous_format
    for step, batch in enumerate(alone):
        both = [shares[rank][step] for rank in range(2)]
        assert torch.equal(torch.cat([one.images for one in both]), batch.images)
        views = [one.views(recipe, layout).unflatten(0, (2, 64)) for one in both]
        assert torch.equal(torch.cat(views, 1).flatten(0, 1), batch.views(recipe, layout))
        micro = [one.views(recipe, layout).unflatten(0, (2, 32)) for one in batch.split(4)]
        assert torch.equal(torch.cat(micro, 1).flatten(0, 1), batch.views(recipe, layout))
    assert not torch.equal(*alone[0].views(recipe, layout).chunk(2))


def test_pass_uses_each_image_at_most_once() -> None:
    built = _built()
    marked = replace(built.data.train, images=torch.arange(1024).view(-1, 1, 1, 1).expand(-1, 3, 8, 8))
    whole = steps_per_pass(len(marked), 128)
    assert whole == 7
    seen = torch.cat([batch.images[:, 0, 0, 0] for batch in batches(marked, built.recipe, 128, RUNTIME, 1)])
    assert len(seen) == len(seen.unique()) == 7 * 128
    again = torch.cat([batch.images[:, 0, 0, 0] for batch in batches(marked, built.recipe, 128, RUNTIME, 2)])
    assert not torch.equal(seen, again)


@pytest.mark.parametrize(("ranks", "images"), [(2, 80), (3, 80), (3, 75), (4, 33)])
def test_features_encoded_by_several_ranks_equal_those_of_one(
    ranks: int, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases: five blocks on three ranks, a smaller last block, and ranks without a block."""
    monkeypatch.setattr(module, "ENCODED", 16)
    built, rows = _built(), torch.arange(images).flip(0)
    alone = built.features(built.data.train, rows)
    shares: list[torch.Tensor] = []

    def sent(features: torch.Tensor, counts: list[int]) -> None:
        assert sum(counts) == images
        first = sum(counts[: len(shares)])
        shares.append(features[first : first + counts[len(shares)]])

    monkeypatch.setattr(module, "share_rows", sent)
    for rank in range(ranks):
        built.runtime = replace(RUNTIME, rank=rank, world_size=ranks)
        built.features(built.data.train, rows)
    assert torch.equal(torch.cat(shares), alone)


def test_learning_rate_warms_up_and_decays_or_stays_constant() -> None:
    params = Params(lr=2.0, warmup=0.2)
    rates = [learning_rate(params, step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[19] == rates[20] == pytest.approx(2.0)
    assert rates[60] == pytest.approx(1.0)
    assert 0 < rates[99] < 0.001
    assert all(first >= second for first, second in pairwise(rates[20:]))
    constant = Params(schedule="constant", lr=2.0)
    assert {learning_rate(constant, step, 100) for step in range(100)} == {2.0}


def test_lars_step_matches_its_formula() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 2).double()
    optimizer = optimizer_of(layer, Params(optimizer="lars", momentum=0.5, weight_decay=0.1))
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    moving, shift = torch.zeros_like(weight), torch.zeros_like(bias)
    for step in range(3):
        gradients = [torch.full_like(weight, 0.5 + step), torch.full_like(bias, -1.0)]
        layer.weight.grad, layer.bias.grad = (gradient.clone() for gradient in gradients)
        take_step(optimizer, 4.0)
        update = gradients[0] + 0.1 * weight
        moving = 0.5 * moving + TRUST * weight.norm() / update.norm() * update
        shift = 0.5 * shift + gradients[1]  # a bias has neither weight decay nor adaptation
        weight, bias = weight - 4 * moving, bias - 4 * shift
    torch.testing.assert_close(layer.weight.detach(), weight)
    torch.testing.assert_close(layer.bias.detach(), bias)
    assert layer.weight.grad is None


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "lars"])
def test_optimiser_resumes_from_its_state(optimizer: Any) -> None:
    def steps(layer: nn.Module, inner: torch.optim.Optimizer, count: int) -> None:
        for _ in range(count):
            torch.autograd.backward(layer(torch.ones(1, 3)).square().sum())
            take_step(inner, 0.05)

    torch.manual_seed(1)
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    whole = optimizer_of(first, Params(optimizer=optimizer))
    steps(first, whole, 2)
    second.load_state_dict(first.state_dict())
    resumed = optimizer_of(second, Params(optimizer=optimizer))
    load_optimizer_state(resumed, second, optimizer_state(whole, first))
    steps(first, whole, 2)
    steps(second, resumed, 2)
    assert torch.equal(first.weight, second.weight)
    assert set(optimizer_state(whole, first)) == {"weight", "bias"}


def test_a_state_of_another_model_is_refused() -> None:
    state = _built().state_dict()
    with pytest.raises(ValueError, match=r"the checkpoint does not fit: head\.3\.weight is \(16, 128\) there and \(8,"):
        _built(projection=8).load_state_dict(state)
    with pytest.raises(ValueError, match="missing there"):
        _built().load_state_dict({})
    with pytest.raises(ValueError, match=r"target\.encoder.* is missing there and .* with method=moco"):
        _built(method="moco").load_state_dict(state)
    longer = _built(method="moco", queue=512).state_dict()
    with pytest.raises(ValueError, match=r"queue is \(512, 16\) there and \(256, 16\)"):
        _built(method="moco", queue=256).load_state_dict(longer)
    with pytest.raises(ValueError, match=r"queue is \(512, 16\) there and missing"):
        _built().load_state_dict({**longer, "method": {"queue": longer["method"]["queue"]}})


def test_classifiers_learn_from_a_bounded_bank(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classifiers are fitted only to the images of the bank, which eval_bank limits."""
    every = _built(eval_probe="always")
    bounded = _built(eval_probe="always", eval_bank=64)
    bank = bounded.bank()
    rows = evenly_spaced(len(every.data.train), 64)
    assert torch.equal(bank.labels, every.data.train.labels[rows])
    torch.testing.assert_close(bank.features, every.bank().features[rows])
    assert bounded.servable().weights["classifier.weight"].ne(every.servable().weights["classifier.weight"]).any()
    assert bounded.evaluate("test").metrics["knn_top1"] != every.evaluate("test").metrics["knn_top1"]
    monkeypatch.setattr("workloads.simclr.workload.BANK", 64)
    assert torch.equal(every.bank().labels, bank.labels)


def test_evenly_spaced_selects_rows_at_regular_intervals() -> None:
    assert evenly_spaced(10, 100).tolist() == list(range(10))
    assert evenly_spaced(9, 3).tolist() == [0, 4, 8]
    assert len(evenly_spaced(10_000, 2048).unique()) == 2048
    assert np.diff(evenly_spaced(10_000, 2048).numpy()).max() <= 6
