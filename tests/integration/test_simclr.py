"""An image encoder that is trained by a command, registered, and used to predict from files of images."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import dataclass
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from orchestrator.errors import UserError
from orchestrator.registry import models, prediction, serving, tables
from orchestrator.report import comparison_output
from orchestrator.storage import run_lookup
from orchestrator.storage.settings import Settings, resolve
from orchestrator.tracking.mlflow_globals import tracking_uri_set
from tests.support.commands import typed
from tests.support.pictures import class_folders
from tests.support.stores import copy_store


def encoded(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format="PNG")
    return stream.getvalue()


@dataclass(frozen=True)
class Trained:
    """A run that registered its model as ``shapes``, in a home of its own."""

    home: Path
    folder: Path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, initialised_store: Path) -> Trained:
    home = tmp_path_factory.mktemp("trained")
    copy_store(initialised_store, home)
    words = ["dataset_size=16", "encoder=tiny", "loss=bcl", "epochs=2", "eval_probe=always", "--register", "shapes"]
    done = typed(home, "run", "simclr", *words, "--local", "--json")
    assert done.returncode == 0, done.stderr
    return Trained(home, home / "storage" / json.loads(done.stdout.splitlines()[-1])["id"])


@pytest.fixture
def registry(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(trained.home))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    return resolve()


def test_tables_of_the_test_evaluation_are_logged_and_plotted(trained: Trained, registry: Settings) -> None:
    names = {f"{name}.{form}" for name in ("scores", "plane") for form in ("parquet", "png")}
    assert {file.name for file in (trained.folder / "tables").iterdir()} == names
    logged = models.client(registry)
    run_id = json.loads((trained.folder / "record.json").read_text())["run_id"]
    assert {Path(file.path).name for file in logged.list_artifacts(run_id, "tables")} == names
    page = comparison_output.report([run_lookup.find(registry.storage, trained.folder.name)])
    assert "<figcaption>scores</figcaption>" in page
    assert "<figcaption>plane</figcaption>" in page


def test_model_signature_is_binary_and_the_example_has_image_bytes(registry: Settings) -> None:
    with tracking_uri_set(registry.tracking):
        loaded = mlflow.pyfunc.load_model("models:/shapes/1")
    assert [(column.name, column.type.name) for column in loaded.metadata.signature.inputs] == [("image", "binary")]
    example = loaded.input_example["image"]
    assert [Image.open(io.BytesIO(image)).size for image in example] == [(16, 16), (16, 16)]
    assert len(loaded.predict(loaded.input_example)) == 2


@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl"])
def test_prediction_of_images_returns_embeddings_and_classes(
    form: str, trained: Trained, registry: Settings, tmp_path: Path
) -> None:
    """Parquet contains the bytes of the files; CSV and JSONL contain them in base64."""
    picture = Image.fromarray(np.random.default_rng(1).integers(0, 256, (30, 20, 3), dtype=np.uint8))
    images = [encoded(picture), encoded(picture.convert("L"))]
    asked, answered = tmp_path / f"images.{form}", tmp_path / "answers.parquet"
    if form == "parquet":
        pd.DataFrame({"image": images}).to_parquet(asked)
    else:
        texts = pd.DataFrame({"image": [base64.b64encode(image).decode() for image in images]})
        texts.to_csv(asked, index=False) if form == "csv" else texts.to_json(asked, orient="records", lines=True)
    prediction.predict(registry, "shapes/1", str(asked), str(answered), {})
    own = serving.predictor(trained.folder / "model").predict(pd.DataFrame({"image": images}))
    found = pd.read_parquet(answered)
    assert list(found) == ["embedding", "label", "probability", "probabilities"]
    np.testing.assert_allclose(np.stack(found["embedding"]), np.stack(own["embedding"]), rtol=1e-6)
    assert found["label"].tolist() == own["label"].tolist()


def test_row_that_is_not_an_image_is_refused_with_its_number(
    registry: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "BATCH_ROWS", 2)
    asked, image = tmp_path / "images.parquet", encoded(Image.new("L", (16, 16)))
    pd.DataFrame({"image": [image, image, image, b"no image"]}).to_parquet(asked)
    with pytest.raises(UserError, match=r"shapes/1 refuses rows 3 to 4: row 4 of the input is no image"):
        prediction.predict(registry, "shapes/1", str(asked), None, {})


@pytest.mark.parametrize("verb", [["run", "simclr"], ["sweep", "simclr", "--trials", "1"]])
def test_skipped_corrupt_images_are_reported_once(verb: list[str], tmp_path: Path) -> None:
    class_folders(tmp_path / "pictures", {"a": 20, "b": 20})
    for name in ("a/3.png", "b/7.png"):
        (tmp_path / "pictures" / name).write_bytes(b"no image")
    words = [f"dataset={tmp_path / 'pictures'}", "dataset_corrupt=skip", "encoder=tiny", "batch_size=8", "epochs=1"]
    done = typed(tmp_path / "home", *verb, *words, "refit=false", "--local", "--tracking", "none")
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("Warning: ")]
    assert told == [
        f"Warning: 2 images cannot be decoded and are left out, the first of them {tmp_path}/pictures/a/3.png "
        "(it is in no format that is known)"
    ]


def test_settings_that_cannot_be_trained_are_refused(tmp_path: Path) -> None:
    for word, message in (
        ("batch_size=1", "batch_size=1 leaves an image no negatives"),
        ("temperature=0", "temperature"),
        ("batch_size=4096", "batch_size=4096 is more than the 920 training images"),
        ("subvector=500", "subvector=500 is more than the 128 features"),
        ("dataset=ml-100k", "dataset 'ml-100k' holds another kind of data: got interactions; expected images"),
    ):
        done = typed(tmp_path, "run", "simclr", "dataset_size=16", word, "--local", "--tracking", "none")
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr
