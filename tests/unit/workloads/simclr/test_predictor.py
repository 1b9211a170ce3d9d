"""The served SimCLR encoder: features match evaluation, forms of image input, invalid input, imports."""

from __future__ import annotations

import ast
import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from workloads.contract import Runtime
from workloads.data.images.decode import decode, square
from workloads.predictor_sources import predictor_sources
from workloads.simclr import predictor
from workloads.simclr.params import Params
from workloads.simclr.predictor import Predictor
from workloads.simclr.workload import SimCLR

RUNTIME = Runtime(device=torch.device("cpu"), data=Path(), seed=3, epochs=1)


@pytest.fixture(scope="module")
def trained() -> SimCLR:
    params = Params(dataset_size=16, encoder="tiny", batch_size=128, eval_probe="always")
    workload = SimCLR(params, RUNTIME)
    workload.train_epoch(1)
    return workload


@pytest.fixture(scope="module")
def served(trained: SimCLR) -> Predictor:
    servable = trained.servable()
    return Predictor({name: tensor.numpy() for name, tensor in servable.weights.items()}, dict(servable.config))


def _encoded(image: Image.Image, form: str = "PNG") -> bytes:
    stream = io.BytesIO()
    image.save(stream, format=form)
    return stream.getvalue()


def _picture(height: int = 16, width: int = 16) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.slow
def test_served_features_and_labels_match_evaluation(trained: SimCLR, served: Predictor) -> None:
    """The features equal those of evaluation, and the classifier has the same hits on at least 95% of the images."""
    part, rows = trained.data.test, torch.arange(64)
    images = [image.permute(1, 2, 0).numpy() for image in part.take(rows)]
    answer = served.predict(pd.DataFrame({"image": pd.Series(images)}), batch_size=50)
    expected = trained.features(part, rows)
    np.testing.assert_allclose(np.stack(answer["embedding"]), expected.numpy(), rtol=1e-4, atol=1e-5)
    likely = np.stack(answer["probabilities"])
    np.testing.assert_allclose(likely.sum(1), 1, rtol=1e-5)
    assert answer["label"].tolist() == [trained.data.classes[place] for place in likely.argmax(1)]
    np.testing.assert_allclose(answer["probability"], likely.max(1))
    hits = answer["label"] == [trained.data.classes[label] for label in part.labels[:64].tolist()]
    judged = trained.evaluate("test").units["probe_top1"][:64]
    assert (hits == judged).mean() > 0.95, "near-equal classes may swap in a few images"


def test_prediction_for_the_servable_example_matches_its_features(trained: SimCLR, served: Predictor) -> None:
    servable = trained.servable()
    answer = served.predict(pd.DataFrame(dict(servable.example)), **servable.params)
    expected = trained.features(trained.data.train, torch.arange(2))
    np.testing.assert_allclose(np.stack(answer["embedding"]), expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("size", "at_once"), [(16, 256), (64, 128), (224, 10)])
def test_default_batch_size_of_serving_falls_with_the_image_size(size: int, at_once: int) -> None:
    params = Params(dataset_size=size, encoder="tiny", batch_size=128, eval_probe="never")
    assert SimCLR(params, RUNTIME).servable().params["batch_size"] == at_once


def test_every_input_form_of_an_image_gives_the_same_embedding(served: Predictor) -> None:
    picture = _picture()
    array = np.asarray(picture)
    nested = np.empty(16, dtype=object)  # the form in which Parquet returns nested lists
    nested[:] = [np.array([np.array(pixel) for pixel in line] + [None], dtype=object)[:-1] for line in array]
    forms: list[Any] = [
        _encoded(picture), bytearray(_encoded(picture)), base64.b64encode(_encoded(picture)).decode(), array,
        array.transpose(2, 0, 1), array.tolist(), array.astype(np.int64), nested, _encoded(picture.convert("RGBA")),
        base64.encodebytes(_encoded(picture)).decode(), {"bytes": _encoded(picture), "path": "a.png"},
    ]  # fmt: skip
    answer = served.predict(pd.DataFrame({"image": pd.Series(forms)}))
    for embedding in answer["embedding"]:
        np.testing.assert_allclose(embedding, answer["embedding"][0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "picture",
    [
        _picture(40, 21), _picture(9, 30), _picture().convert("L"), _picture().convert("P"),
        _picture().convert("CMYK"), Image.fromarray(np.full((16, 16, 4), 90, np.uint8)),
        Image.fromarray(np.full((16, 16), 40_000, np.uint16)),
    ],
    ids=lambda picture: f"{picture.mode} {picture.size}",
)  # fmt: skip
def test_image_file_is_decoded_as_in_training(picture: Image.Image) -> None:
    content = _encoded(picture, "TIFF" if picture.mode == "CMYK" else "PNG")
    expected = square(decode(content), 16).transpose(1, 2, 0)
    assert np.array_equal(predictor._pixels(content, 0, 16), expected)


def test_images_are_encoded_in_full_float32(served: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    forward = served.encoder.forward

    def watched(images: torch.Tensor) -> torch.Tensor:
        seen.append(torch.backends.cudnn.allow_tf32)
        return forward(images)

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(served.encoder, "forward", watched)
    served.predict(pd.DataFrame({"image": [np.zeros((32, 32, 3), np.uint8)]}))
    assert seen == [False]
    assert torch.backends.cudnn.allow_tf32


def test_unit_length_option_normalises_embeddings(served: Predictor) -> None:
    images = pd.DataFrame({"image": [_encoded(_picture()), _encoded(_picture(20, 20))]}, index=[7, 3])
    plain, unit = served.predict(images), served.predict(images, unit_length=True)
    assert plain.index.tolist() == [7, 3]
    for row in (7, 3):
        assert np.linalg.norm(unit["embedding"][row]) == pytest.approx(1, rel=1e-5)
        expected = plain["embedding"][row] / np.linalg.norm(plain["embedding"][row])
        np.testing.assert_allclose(unit["embedding"][row], expected, rtol=1e-5)
    assert unit["probability"].tolist() == pytest.approx(plain["probability"].tolist())


def test_predictor_accepts_no_rows_and_no_classifier(trained: SimCLR) -> None:
    servable = trained.servable()
    weights = {name: value.numpy() for name, value in servable.weights.items() if not name.startswith("classifier")}
    bare = Predictor(weights, dict(servable.config))
    assert list(bare.predict(pd.DataFrame({"image": [_encoded(_picture())]})).columns) == ["embedding"]
    assert len(bare.predict(pd.DataFrame({"image": []}))) == 0


def test_any_error_of_pillow_is_reported_with_the_row(served: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow's readers of AVIF and DDS raise errors of other types."""
    inputs = pd.DataFrame({"image": pd.Series([_encoded(_picture())])})
    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", lambda _: 1 / 0)
    with pytest.raises(ValueError, match="row 0 of the input is no image that can be read: division by zero"):
        served.predict(inputs)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (b"GIF89a, but no more", "row 1 of the input is no image that can be read: it is in no format"),
        (_encoded(_picture())[:-30], "row 1 of the input is no image that can be read: .*(trunc|incomplete)"),
        ("not base64!", "row 1 .* text must be the base64 of an image file"),
        (np.zeros((4, 4, 2), np.uint8), r"row 1 .* must be \(H, W, 3\), \(H, W\) or \(3, H, W\), got \(4, 4, 2\)"),
        (np.full((4, 4, 3), 300), "row 1 .* whole numbers from 0 to 255"),
        (np.zeros((4, 4, 3), np.float32), "row 1 .* whole numbers from 0 to 255, got float32"),
        ([[1, 2], [3]], "row 1 of the input is no image"),
        (None, "row 1 .* it is missing"),
        ({"path": "a.png"}, "row 1 .* it is missing"),
        (np.zeros((0, 4, 3), np.uint8), r"row 1 .* got \(0, 4, 3\)"),
    ],
)
def test_invalid_image_is_refused_with_its_row(served: Predictor, image: Any, message: str) -> None:
    inputs = pd.DataFrame({"image": pd.Series([_encoded(_picture()), image])})
    with pytest.raises(ValueError, match=message):
        served.predict(inputs)


def test_missing_image_column_or_zero_batch_size_is_refused(served: Predictor) -> None:
    with pytest.raises(ValueError, match="needs a column 'image' with images, got"):
        served.predict(pd.DataFrame({"picture": []}))
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        served.predict(pd.DataFrame({"image": []}), batch_size=0)


def test_predictor_files_import_no_project_package() -> None:
    sources = predictor_sources(Path(predictor.__file__))
    assert sources.keys() == {"predictor.py", "encoders/image.py"}
    for file in sources.values():
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert not {name.partition(".")[0] for name in names} & {"workloads", "orchestrator"}
