"""Serve a trained VERA model: queries with their candidates in, a ranking with its probability of success out.

This one file goes to the registry. It needs NumPy, pandas, PyTorch, tokenizers and transformers, and uses CUDA where
it is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import AutoConfig, AutoModel

_EDGE = 1e-12


class Predictor:
    """Ranks the candidates that a query comes with, and says when not to trust the ranking."""

    def __init__(self, weights: dict[str, NDArray[Any]], config: dict[str, Any]) -> None:
        """Take the trained model.

        Args:
            weights: ``encoder.*`` of the transformer, the model's by their names, and ``map`` of the confidence.
            config: what ``serving.py`` beside this file writes.
        """
        self.config = config
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        settings = AutoConfig.for_model(**config["encoder"])
        self.encoder = AutoModel.from_config(settings)  # type: ignore[no-untyped-call]
        own = {name.removeprefix("encoder."): side for name, side in weights.items() if name.startswith("encoder.")}
        # A pooler that nothing reads is not stored.
        self.encoder.load_state_dict(
            {name: torch.from_numpy(np.array(side)) for name, side in own.items()}, strict=False
        )
        self.encoder.to(self.device).eval()
        self.weights = {
            name: torch.from_numpy(np.array(side)).to(self.device)
            for name, side in weights.items()
            if name not in ("map",) and not name.startswith("encoder.")
        }
        self.map = np.asarray(weights["map"], np.float64)
        self.category = {name: number for number, name in enumerate(config["categories"])}
        self.tokenizer = Tokenizer.from_str(config["tokenizer"])
        self.tokenizer.enable_truncation(config["max_length"])
        self.tokenizer.enable_padding()

    @torch.inference_mode()
    def predict(self, inputs: pd.DataFrame, *, batch_size: int = 64) -> pd.DataFrame:
        """Rank the candidates of each query and say how probable it is that an answer is among the first k.

        Args:
            inputs: columns ``query`` and ``candidate``, a text each, and the features of training: of questions over a
                graph ``step`` (such as ``2>``; ``random``), ``relation``, ``via_1``, ... and ``subject_degree``,
                ``object_degree``, ``ln(1 + degree)``; of documents ``bm25``. Rows of equal queries are one list. A
                category that training has not seen counts as none.
            batch_size: texts that are read at once.

        Returns:
            In the order of the input: ``query``, ``candidate``, ``score``, ``rank`` from 1, ties in the order of the
            input; by the evidence ``probability`` μ and ``kappa`` κ of each candidate (the less, the less is known);
            and of the query ``confidence``, c^(k), its ``k``, and ``abstain``: whether it is below the threshold that
            keeps the risk on validation.

        Raises:
            ValueError: a column is missing, or holds a gap, no text or no number.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        config = self.config
        needed = ["query", "candidate", *config["code_names"], *config["number_names"]]
        if missing := [name for name in needed if name not in inputs.columns]:
            raise ValueError(f"the input needs the columns {needed}, of which {missing} are missing")
        queries, texts = (_texts(inputs, name) for name in ("query", "candidate"))
        found = pd.DataFrame({"query": queries, "candidate": texts})
        if config["of_graph"]:
            queries, texts = ([_plain(text) for text in side] for side in (queries, texts))
        if not queries:
            return found
        list_of = torch.from_numpy(pd.factorize(found["query"])[0].astype(np.int64)).to(self.device)
        codes = [[self.category.get(str(value), 0) for value in inputs[name]] for name in config["code_names"]]
        numbers = [_numbers(inputs, name) for name in config["number_names"]]
        scores, alpha, beta = self._scores(list_of, queries, texts, codes, numbers, batch_size)
        found["score"] = scores.cpu().numpy()
        found["rank"] = found.groupby("query")["score"].rank(method="first", ascending=False).astype(np.int64)
        first = torch.tensor((found["rank"] <= config["k"]).tolist(), device=self.device)
        count = int(list_of.max()) + 1
        if config["confidence"] == "evidence":
            mu, failure = alpha / (alpha + beta), -(alpha.double() / beta.double()).log1p()
            found["probability"], found["kappa"] = mu.cpu().numpy(), (alpha + beta).cpu().numpy()
            confidence = -_sums(failure * first, list_of, count).expm1()
        else:
            temperature = config["temperature"] * (self.map[0] if config["map"] == "temperature" else 1)
            confidence = _sums(_softmax(scores.double() / temperature, list_of, count) * first, list_of, count)
        mapped = self._mapped(confidence.cpu().numpy())[list_of.cpu().numpy()]
        found["confidence"], found["k"] = mapped, config["k"]
        found["abstain"] = mapped < config["threshold"]
        return found

    def _scores(
        self,
        list_of: torch.Tensor,
        queries: list[str],
        texts: list[str],
        codes: list[Any],
        numbers: list[Any],
        size: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Scores, α and β of n candidates, (n,) each: the model of ``model.py`` beside this file."""
        w = {name.removeprefix("backbone."): side for name, side in self.weights.items()}
        count = int(list_of.max()) + 1
        query, text = self._vectors(queries, size), self._vectors(texts, size)
        scale = query.shape[1] ** 0.5
        plain = torch.tensor(np.array(numbers, np.float32).reshape(len(numbers), len(queries)).T, device=self.device)
        feature = torch.cat([(plain - w["mean"]) / w["deviation"], (query * text).sum(1, keepdim=True)], 1)
        among = torch.cat([feature, _standardised(feature, list_of, count)], 1)
        asked = functional.linear(query * scale, w["query.weight"], w["query.bias"])
        candidate = functional.linear(text * scale, w["text.weight"], w["text.bias"])
        candidate = candidate + functional.linear(among, w["number.weight"])
        for column in codes:
            candidate = candidate + w["category.weight"][torch.tensor(column, device=self.device)]
        met = functional.linear(asked * candidate, w["match.weight"], w["match.bias"])
        met = met + functional.linear(candidate, w["own.weight"]) + functional.linear(asked, w["asked.weight"])
        z = functional.layer_norm(functional.gelu(met), met.shape[1:], w["norm.weight"])
        scores = functional.linear(z, w["ranking.weight"]).squeeze(1)
        if self.config["method"] == "softmax":
            return scores, torch.ones_like(scores), torch.ones_like(scores)
        seen = z
        if self.config["context"]:
            seen = torch.cat([z * self.config["scales"]["beside"], self._lead(scores, list_of, count), among], 1)
        hidden = functional.gelu(functional.linear(seen, w["evidence.0.weight"], w["evidence.0.bias"]))
        a, b = functional.linear(hidden, w["evidence.2.weight"], w["evidence.2.bias"]).unbind(1)
        if self.config["method"] == "vera":
            largest = self.config["scales"]["largest"]
            a, b = (torch.where(side > 0, _grown(side, largest), side) for side in (a, b))
        positive, negative = self.config["priors"]
        alpha, beta = positive + functional.softplus(a), negative + functional.softplus(b)
        return (alpha.log() - beta.log() if self.config["method"] == "edl" else scores), alpha, beta

    def _lead(self, scores: torch.Tensor, list_of: torch.Tensor, count: int) -> torch.Tensor:
        """How each score compares with those of the other candidates, and how they share it out, (n, 5)."""
        scales, none = self.config["scales"], scores.new_full((count,), -math.inf)
        best = none.scatter_reduce(0, list_of, scores, "amax")[list_of]
        is_best = scores == best
        ties = _sums(is_best.to(scores.dtype), list_of, count)[list_of]
        others = torch.where(is_best, -math.inf, scores)
        second = none.scatter_reduce(0, list_of, others, "amax")[list_of]
        other = torch.where(is_best & (ties < 2), second, best)
        plain = _softmax(scores, list_of, count)
        entropy = -_sums(torch.xlogy(plain, plain), list_of, count)[list_of]
        size = _sums(torch.ones_like(scores), list_of, count).log()[list_of]
        share = plain.log().clamp(-scales["furthest"], -1e-6)
        log_odds = share - (-share.expm1()).log()
        ahead = (scores - other).clamp(-scales["furthest"], scales["furthest"])
        sides = (log_odds, ahead, entropy, size)
        return torch.stack([2 * share.exp() - 1, *(side / scales["unit"] for side in sides)], 1)

    def _mapped(self, confidence: NDArray[np.float64]) -> NDArray[np.float64]:
        """The confidence after the map that was fitted on validation."""
        kind = self.config["map"]
        if kind == "none" or (kind == "temperature" and self.config["confidence"] != "evidence"):
            return confidence
        if kind == "isotonic":
            x, y = self.map.reshape(2, -1)
            steps: NDArray[np.float64] = np.interp(confidence, x, y)
            return steps
        clipped = np.clip(confidence, _EDGE, 1 - _EDGE)
        logit = np.log(clipped) - np.log1p(-clipped)
        logit = logit / self.map[0] if kind == "temperature" else self.map[0] * logit + self.map[1]
        found: NDArray[np.float64] = 1 / (1 + np.exp(-logit))
        return found

    def _vectors(self, texts: list[str], batch_size: int) -> torch.Tensor:
        """Vectors of length one, (n, d); equal texts are read once, a blank one has the zero vector."""
        different = list(dict.fromkeys(texts))
        vectors = torch.zeros(len(different), self.encoder.config.hidden_size, device=self.device)
        order = sorted((row for row, text in enumerate(different) if text.strip()), key=lambda row: len(different[row]))
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            read = self.tokenizer.encode_batch_fast([different[row] for row in rows])
            ids, mask = (
                torch.tensor([getattr(one, side) for one in read], device=self.device)
                for side in ("ids", "attention_mask")
            )
            hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state.float()
            real = mask.unsqueeze(2)
            vectors[rows] = (hidden * real).sum(1) / real.sum(1).clamp(min=1)
        place = {text: number for number, text in enumerate(different)}
        return functional.normalize(vectors, eps=1e-8)[[place[text] for text in texts]]


def _sums(values: torch.Tensor, list_of: torch.Tensor, count: int) -> torch.Tensor:
    return values.new_zeros(count).index_add(0, list_of, values)


def _grown(side: torch.Tensor, largest: float) -> torch.Tensor:
    """Exponential up to ``largest``, and from there in a straight line."""
    low = side.clamp(0, largest)
    return low.expm1() + math.exp(largest) * (side - low)


def _softmax(scores: torch.Tensor, list_of: torch.Tensor, count: int) -> torch.Tensor:
    """Of each list's scores, (n,)."""
    best = scores.new_full((count,), -math.inf).scatter_reduce(0, list_of, scores, "amax")
    raised = (scores - best[list_of]).exp()
    return raised / _sums(raised, list_of, count)[list_of]


def _standardised(features: torch.Tensor, list_of: torch.Tensor, count: int) -> torch.Tensor:
    """Mean 0 and deviation 1 within each list, (n, F)."""
    zeros = features.new_zeros(count, features.shape[1])
    sizes = zeros.index_add(0, list_of, torch.ones_like(features))
    centred = features - (zeros.index_add(0, list_of, features) / sizes)[list_of]
    deviation = (zeros.index_add(0, list_of, centred.square()) / sizes).sqrt()[list_of]
    return centred / torch.where(deviation > 1e-6, deviation, 1)


def _plain(text: str) -> str:
    """The words of a graph's names, as in training."""
    return " ".join(text.replace("_", " ").replace("/", " ").split())


def _texts(inputs: pd.DataFrame, name: str) -> list[str]:
    values = inputs[name].tolist()
    for row, value in enumerate(values):
        if not isinstance(value, str):
            raise ValueError(f"column {name!r} holds texts, got {value!r} in row {row}")
    return values


def _numbers(inputs: pd.DataFrame, name: str) -> NDArray[np.float32]:
    numbers = pd.to_numeric(inputs[name], errors="coerce").to_numpy(np.float32)
    if not np.isfinite(numbers).all():
        row = int((~np.isfinite(numbers)).argmax())
        raise ValueError(f"column {name!r} holds numbers, got {inputs[name].iloc[row]!r} in row {row}")
    return numbers
