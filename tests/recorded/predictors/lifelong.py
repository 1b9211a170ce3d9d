"""Search with a trained retrieval model: queries in, the documents of its index out.

This one file goes to the registry. It needs NumPy, pandas, pyarrow, PyTorch, tokenizers and transformers, and uses CUDA
where it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tokenizers
import torch
from numpy.typing import NDArray
from torch.nn import functional
from transformers import AutoConfig, AutoModel

_FLOOR = 1e-8
_BLOCK = 8192
_TEXTS = 64


class Predictor:
    """Embeds queries and searches the index that belongs to the model."""

    def __init__(self, weights: dict[str, NDArray[Any]], config: dict[str, Any]) -> None:
        """Rebuild the encoder and its index.

        Args:
            weights: ``model.*`` by the names of the transformer's state; ``tokenizer`` and ``index.doc_ids``, the bytes
                of JSON texts; ``index.docs`` (n,), ``index.models`` (n,) and ``index.vectors`` (n, d), unless the index
                is in files.
            config: ``model``, ``pooling``, ``max_length`` and ``lineage``: its id, the ``session`` of the model,
                whether it is ``compatible`` with older rows, the folder of the ``index`` and its ``segments``.

        Raises:
            ValueError: a file of the index is missing, damaged, or another one than the model was registered with.
        """
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer = tokenizers.Tokenizer.from_str(_text(weights["tokenizer"]))
        self.tokenizer.enable_truncation(int(config["max_length"]))
        self.tokenizer.no_padding()
        self.pooling, self.lineage = config["pooling"], config["lineage"]
        self.model = AutoModel.from_config(AutoConfig.for_model(**config["model"]))  # type: ignore[no-untyped-call]
        if hasattr(self.model, "pooler"):
            self.model.pooler = None
        own = {name.removeprefix("model."): value for name, value in weights.items() if name.startswith("model.")}
        self.model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in own.items()})
        self.model.to(self.device).eval()
        self.doc_ids: list[str] = json.loads(_text(weights["index.doc_ids"]))
        if "index.vectors" in weights:
            self.index = [(weights["index.docs"], weights["index.vectors"])]
        else:
            self.index = _mapped(Path(self.lineage["index"]), self.lineage["segments"])

    @torch.inference_mode()
    def predict(self, inputs: pd.DataFrame, *, k: int = 10, index: str = "") -> pd.DataFrame:
        """The best documents of each query.

        Args:
            inputs: column ``query``, a text each.
            k: documents of a query, or all there are.
            index: folder of another index of the same lineage, such as the one that has grown since.

        Returns:
            A row a query and document, in the order of the input, best first: ``query``, ``rank`` from 1, ``document``
            and ``score``, a cosine. A query without text finds nothing.

        Raises:
            ValueError: the column is missing or holds no text, ``k`` is below 1, or the model can not read the index.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        queries = _queries(inputs)
        segments = _open(Path(index), self.lineage) if index else self.index
        vectors, empty = self._embed(queries)
        scores = torch.empty(len(queries), 0, device=self.device)
        docs = torch.empty(len(queries), 0, dtype=torch.int64, device=self.device)
        for numbers, rows in _blocks(segments):
            found = vectors @ torch.from_numpy(rows).to(self.device).T
            names = torch.from_numpy(numbers).to(self.device).expand(found.shape)
            scores, docs = torch.cat([scores, found], 1), torch.cat([docs, names], 1)
            scores, order = scores.sort(dim=1, descending=True, stable=True)
            scores, docs = scores[:, :k], docs.gather(1, order)[:, :k]
        kept = [row for row in range(len(queries)) if row not in empty]
        number = docs.shape[1]
        return pd.DataFrame(
            {
                "query": [queries[row] for row in kept for _ in range(number)],
                "rank": np.tile(np.arange(1, number + 1), len(kept)),
                "document": [self.doc_ids[doc] for row in kept for doc in docs[row].tolist()],
                "score": scores[kept].cpu().numpy().ravel().astype(np.float32),
            }
        )

    def _embed(self, texts: list[str]) -> tuple[torch.Tensor, set[int]]:
        """Vectors of length one, (n, d), and which texts have no token."""
        bare = [len(one.ids) for one in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        framed = self.tokenizer.encode_batch_fast(texts)
        vectors = torch.zeros(len(texts), self.model.config.hidden_size, device=self.device)
        order = [row for row in np.argsort(bare, kind="stable").tolist() if bare[row]]
        for first in range(0, len(order), _TEXTS):
            rows = order[first : first + _TEXTS]
            vectors[rows] = self._read([torch.tensor(framed[row].ids) for row in rows])
        return functional.normalize(vectors, eps=_FLOOR), {row for row, count in enumerate(bare) if not count}

    def _read(self, ids: list[torch.Tensor]) -> torch.Tensor:
        padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True).to(self.device)
        lengths = torch.tensor([len(one) for one in ids], device=self.device).unsqueeze(1)
        mask = torch.arange(padded.shape[1], device=self.device) < lengths
        hidden = self.model(input_ids=padded, attention_mask=mask.long()).last_hidden_state
        if self.pooling == "cls":
            return torch.as_tensor(hidden[:, 0])
        real = mask.unsqueeze(-1)
        if self.pooling == "max":
            return torch.as_tensor(hidden.masked_fill(~real, -torch.inf).amax(1))
        return torch.as_tensor(hidden.masked_fill(~real, 0).sum(1) / lengths)


def _blocks(segments: list[tuple[NDArray[Any], NDArray[Any]]]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    for docs, vectors in segments:
        for first in range(0, len(docs), _BLOCK):
            part = slice(first, first + _BLOCK)
            yield np.array(docs[part]), np.array(vectors[part])


def _open(folder: Path, lineage: dict[str, Any]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Another index than the model's own, where it can read it."""
    try:
        manifest = json.loads((folder / "index.json").read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} holds no index that can be read: {error}") from None
    if manifest["lineage"] != lineage["id"]:
        raise ValueError(
            f"the index in {folder} belongs to models of another lineage ({manifest['lineage'][:8]}) than this one "
            f"({lineage['id'][:8]}). Use the model that was promoted with it"
        )
    written = {int(segment["session"]) for segment in manifest["segments"]}
    if written and (
        max(written) > lineage["session"] or (not lineage["compatible"] and written != {lineage["session"]})
    ):
        raise ValueError(
            f"the index in {folder} has rows by the models of sessions {sorted(written)}, which the model of session "
            f"{lineage['session']} can not read. Use the model that was promoted with it"
        )
    return _mapped(folder, manifest["segments"])


def _mapped(folder: Path, segments: list[dict[str, Any]]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """The files of an index, none other than those that are named."""
    import pyarrow as pa

    found = []
    for segment in segments:
        file = folder / segment["file"]
        try:
            with pa.memory_map(str(file)) as source:
                batch = pa.ipc.open_file(source).get_batch(0)
            checksum = json.loads(batch.schema.metadata[b"index"])["crc32"]
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise ValueError(f"the index file {file} is missing, truncated or damaged: {error}") from None
        if checksum != segment["crc32"]:
            raise ValueError(
                f"the index file {file} is another one than the model belongs to: its rows were written again, with "
                f"checksum {checksum:08x} in the place of {segment['crc32']:08x}. Bring the file back, or use the "
                "model that was registered with it"
            )
        column = batch.column("vector")
        vectors = column.values.to_numpy().reshape(-1, column.type.list_size)
        found.append((batch.column("doc").to_numpy(), vectors))
    return found


def _queries(inputs: pd.DataFrame) -> list[str]:
    if "query" not in inputs.columns:
        raise ValueError(f"the input needs the column 'query', got {list(inputs.columns)}")
    values = inputs["query"].tolist()
    for row, value in enumerate(values):
        if not isinstance(value, str):
            got = "nothing" if value is None or value != value else repr(value)
            raise ValueError(f"column 'query' holds texts, got {got} in row {row}")
    return values


def _text(array: NDArray[Any]) -> str:
    return bytes(array.tobytes()).decode()
