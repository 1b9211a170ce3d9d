"""The default of pooling= is the pooling that sentence-transformers saved with the encoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from workloads.bi_encoder.params import Params as BiEncoder
from workloads.encoders import sources
from workloads.lifelong.params import Params as Lifelong
from workloads.text_ranker.params import Params as TextRanker
from workloads.vera.params import Params as Vera


def saved(folder: Path, config: Any) -> str:
    """Write an encoder's folder with this pooling configuration and otherwise empty files; return its path."""
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "1_Pooling/config.json").write_text(json.dumps(config))
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).touch()
    return str(folder)


OLD = {f"pooling_mode_{mode}": False for mode in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")}


@pytest.mark.parametrize("config", [{"pooling_mode": "cls"}, {**OLD, "pooling_mode_cls_token": True}])
@pytest.mark.parametrize(
    ("params", "settings"), [(BiEncoder, {}), (Lifelong, {}), (Vera, {}), (TextRanker, {"scoring": "bi"})]
)
def test_the_saved_pooling_is_the_default(params: Any, settings: dict[str, Any], config: Any, tmp_path: Path) -> None:
    encoder = saved(tmp_path / "model", config)
    found: BaseModel = params(encoder=encoder, **settings)
    assert found.model_dump()["pooling"] == "cls"
    assert params(encoder=encoder, pooling="mean", **settings).pooling == "mean"
    assert params(**settings).pooling == "mean"
    (tmp_path / "model/1_Pooling/config.json").unlink()
    assert params(encoder=encoder, **settings).pooling == "mean"


@pytest.mark.parametrize(
    ("config", "got"),
    [
        ({"pooling_mode": "lasttoken"}, "got lasttoken"),
        ({**OLD, "pooling_mode_lasttoken": True}, "got pooling_mode_lasttoken"),
        ({**OLD, "pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}, "got cls and max"),
        ([], "pooling cannot be read"),
    ],
)
def test_unsupported_or_unreadable_saved_pooling_is_refused(config: Any, got: str, tmp_path: Path) -> None:
    encoder = saved(tmp_path / "model", config)
    with pytest.raises(ValidationError, match=got):
        BiEncoder(encoder=encoder)
    assert BiEncoder(encoder=encoder, pooling="cls").pooling == "cls"


def test_saved_pooling_of_a_hub_model_is_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path / "model", {"pooling_mode": "max"})
    asked = []

    def download(name: str, file: str, **_: Any) -> str:
        asked.append(name)
        return str(tmp_path / "model" / file)

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", lambda *_, **__: None)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    sources._pooling_on_hub.cache_clear()
    assert [sources.pooling_of({"encoder": "some/model"}) for _ in range(2)] == ["max", "max"]
    assert asked == ["some/model"]
    assert sources.pooling_of({"encoder": "bert-base"}) == "mean"
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_, **__: 1 / 0)
    sources._pooling_on_hub.cache_clear()
    assert sources.pooling_of({"encoder": "other/model"}) == "mean"
    sources._pooling_on_hub.cache_clear()


def test_pooling_of_an_unreachable_hub_model_makes_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """hf_hub_download repeats its request for half a minute, before the model's absence is reported."""
    requests: list[float] = []

    def refuse(*_: Any, timeout: float, **__: Any) -> None:
        requests.append(timeout)
        raise OSError("no route to the hub")

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", refuse)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_, **__: pytest.fail("it was downloaded"))
    sources._pooling_on_hub.cache_clear()
    assert sources.pooling_of({"encoder": "some/model"}) == "mean"
    assert requests == [5.0]
    sources._pooling_on_hub.cache_clear()
