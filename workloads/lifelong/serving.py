"""The registered model: query encoder and index in one version, with their lineage."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from workloads.abstention.calibration import Exported
from workloads.abstention.decision import PARAMS
from workloads.contract import MID_RUN, Runtime, Servable
from workloads.data import fingerprint
from workloads.encoders.served_text import REQUIREMENTS
from workloads.encoders.text import TextEncoder
from workloads.encoders.tokens import Tokenizer
from workloads.initial_weights import bytes_of
from workloads.lifelong.dataset import DEPTH
from workloads.lifelong.index import Index
from workloads.lifelong.params import Params

_FREE = {name for name, field in Params.model_fields.items() if field.json_schema_extra == MID_RUN}


_LATER = {"encoders": ("tied",), "split_queries": (None,), "diversity": ("across", None)}
"""Values of parameters that were added later with which a lineage stays what it was."""


def lineage_of(params: Params, runtime: Runtime, sessions: str) -> str:
    """The id shared by the models of one run and their index. ``sessions``: fingerprint of the split into sessions.

    Runs that differ only in parameters that may change mid-run have the same lineage.
    """
    fixed = params.model_dump(mode="json", exclude={"index", *_FREE})
    fixed = {name: value for name, value in fixed.items() if value not in _LATER.get(name, ())}
    part = [runtime.abstention_part] if runtime.abstention_part else []
    named = [fixed, runtime.seed, runtime.epochs, runtime.holdout, sessions, *part]
    return hashlib.sha256(f"{named} {fingerprint(params.dataset, runtime.data)}".encode()).hexdigest()


def lineage_from(lineage: str, weights: Mapping[str, torch.Tensor]) -> str:
    """The lineage of a run that starts from the encoders of another model."""
    content = hashlib.sha256(lineage.encode())
    for name, value in sorted(weights.items()):
        if name.startswith(("model.", "documents.")):
            content.update(value.numpy().tobytes())
    return content.hexdigest()[: len(lineage)]


def folder_of(params: Params, lineage: str) -> str:
    """Name of the folder for a run's index, from the lineage and the initial values of parameters that may change."""
    values = params.model_dump_json(include=_FREE)
    return hashlib.sha256(f"{lineage} {values}".encode()).hexdigest()[:16]


def servable(
    encoder: TextEncoder,
    tokenizer: Tokenizer,
    index: Index,
    params: Params,
    doc_ids: Any,
    session: int,
    documents: TextEncoder | None = None,
    table: Exported | None = None,
) -> Servable:
    """The encoder with the index, or with its files' names and checksums. Both are promoted as one version.

    ``documents`` is an encoder of documents of its own, which only further training needs; ``table`` is of the
    abstention part, if there is one.
    """
    where = str(index.folder) if index.folder else None
    weights = {f"model.{name}": value for name, value in encoder.model.state_dict().items()}
    weights["tokenizer"] = bytes_of(tokenizer.definition)
    weights["index.doc_ids"] = bytes_of(json.dumps(doc_ids.to_pylist()))
    if index.folder is None:
        weights["index.docs"] = torch.from_numpy(index.docs)
        weights["index.models"] = torch.from_numpy(index.models)
        weights["index.vectors"] = torch.from_numpy(index.vectors())
    return Servable(
        predictor=Path(__file__).with_name("predictor.py"),
        weights={**weights, **(table.weights if table else {})},
        config={
            "dataset": params.dataset,
            "model": encoder.model.config.to_diff_dict(),
            "pooling": encoder.pooling,
            "max_length": tokenizer.max_length,
            "lineage": {
                "id": index.lineage,
                "session": session,
                "parent": session - 1 if session > 0 else None,
                "sessions_seen": list(range(session + 1)),
                "compatible": index.compatible,
                "index": where,
                "segments": index.manifest,
            },
            **({**table.config, "depth": DEPTH} if table else {}),
        },
        example={"query": np.array(["wing flutter at high speed", "blood pressure"], dtype=object)},
        params={"k": 10, "index": "", "recall": 1.0, **(PARAMS if table else {})},
        requirements=(*REQUIREMENTS, "pyarrow"),
        tags={
            "lineage": index.lineage,
            "session": str(session),
            "sessions_seen": f"0 to {session}",
            "index": where or "in the model",
        },
        training={f"documents.{name}": value for name, value in documents.model.state_dict().items()}
        if documents
        else {},
    )
