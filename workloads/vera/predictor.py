"""Predictions of a trained VERA model: rankings of given candidates, with their probability of success.

Exported with the model together with ``served_text.py`` and the rule for abstaining; needs nothing else of the package.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ..abstention.decision import Rule, rule
from ..abstention.scores import BM25, by, padded
from ..encoders.served_text import ServedTextEncoder, number_column, text_columns
from .dropout_masks import masked, masks

EDGE = 1e-12
"""Confidences are kept so far from 0 and 1 before a map takes their logit."""


class Predictor:
    """Ranks the candidates given with a query, and flags rankings that should not be trusted."""

    def __init__(self, weights: dict[str, NDArray[Any]], config: dict[str, Any]) -> None:
        """Rebuild the model.

        Args:
            weights: ``encoder.*`` of the transformer, the model's weights by name, and ``map``, the map of confidences.
            config: the configuration written by VERA's ``serving.py``.
        """
        self.config = config
        self.encoder = ServedTextEncoder(
            weights, "encoder.", config["encoder"], config["tokenizer"], config["max_length"], config["pooling"]
        )
        self.device = self.encoder.device
        self.weights = {
            name: torch.from_numpy(np.array(side)).to(self.device)
            for name, side in weights.items()
            if name != "map" and not name.startswith(("encoder.", "abstention."))
        }
        self.table = {name: side for name, side in weights.items() if name.startswith("abstention.")}
        self.map = np.asarray(weights["map"], np.float64)

    @torch.inference_mode()
    def predict(self, inputs: pd.DataFrame, *, batch_size: int = 64, **abstention: Any) -> pd.DataFrame:
        """Rank the candidates of each query and compute the probability that an answer is among the first k.

        Args:
            inputs: columns ``query`` and ``candidate`` with texts, and the features used in training. For questions
                over a graph these are ``step`` (such as ``2>``, or ``random``), ``relation``, ``via_1``, ..., and
                ``subject_degree`` and ``object_degree``, as ``ln(1 + degree)``, and, with message passing, ``subject``
                and ``object``, the entities' names; for documents ``bm25``. Rows with equal queries form one list. A
                category not seen in training counts as missing.
            batch_size: number of texts encoded at once.
            abstention: of a model with an abstention part, ``risk`` and what it is promised by; see ``PARAMS`` and
                ``rule`` in ``decision.py``.

        Returns:
            In the order of the input: ``query``, ``candidate``, ``score``, ``rank`` from 1, ties in input order. With
            evidence, also ``probability`` μ and ``kappa`` κ of each candidate (a small κ means little evidence). For
            the query, ``confidence`` c^(k), its ``k``, and ``abstain``: whether the confidence is below the threshold
            chosen on validation. With ``risk`` it is whether the promise forbids an answer, and ``reason`` says why.

        Raises:
            ValueError: a column is missing, or has missing values, non-texts or non-numbers, or the risk cannot be
                promised.
        """
        config = self.config
        promised = rule(self.table, config, **abstention)
        layers = config.get("graph_layers", 0)
        ends = ["subject", "object"] if layers else []
        needed = ["query", "candidate", *config["code_names"], *config["number_names"], *ends]
        if missing := [name for name in needed if name not in inputs.columns]:
            raise ValueError(f"the input needs the columns {needed}, of which {missing} are missing")
        queries, texts = text_columns(inputs, "query", "candidate")
        output = pd.DataFrame({"query": queries, "candidate": texts})
        if config["of_graph"]:
            queries, texts = ([words_of(text) for text in side] for side in (queries, texts))
        if not queries:
            return output
        list_of = torch.from_numpy(pd.factorize(output["query"])[0].astype(np.int64)).to(self.device)
        codes = [
            [numbers_of.get(str(value), 0) for value in inputs[name]]
            for name, numbers_of in zip(config["code_names"], config["category_numbers"])
        ]
        numbers = [number_column(inputs, name) for name in config["number_names"]]
        nodes = None
        if layers:
            keys = [list(zip(output["query"], inputs[name].astype(str))) for name in ends]
            nodes = torch.from_numpy(pd.factorize(pd.Series([*keys[0], *keys[1]]))[0].astype(np.int64))
            nodes = nodes.to(self.device).view(2, -1)
        scores, alpha, beta, z = self._scores(list_of, queries, texts, codes, numbers, nodes, batch_size)
        output["score"] = scores.cpu().numpy()
        output["rank"] = output.groupby("query")["score"].rank(method="first", ascending=False).astype(np.int64)
        first = torch.tensor((output["rank"] <= config["k"]).tolist(), device=self.device)
        count = int(list_of.max()) + 1
        failure = -(alpha.double() / beta.double()).log1p()
        if config["confidence"] == "evidence":
            output["probability"] = (alpha / (alpha + beta)).cpu().numpy()
            output["kappa"] = (alpha + beta).cpu().numpy()
            confidence = -_sums(failure * first, list_of, count).expm1()
        elif config["confidence"] == "mc_dropout":
            places = output.groupby("query").cumcount().to_numpy()
            position = torch.tensor(places, device=self.device)
            kept = masks(int(places.max()) + 1, z.shape[1], config["dropout"], config["mask_seed"]).to(self.device)
            drawn = [
                _sums(
                    _softmax(self._ranking(each) / config["temperature"], list_of, count).double() * first,
                    list_of,
                    count,
                )
                for each in masked(z, position, kept, config["dropout"])
            ]
            confidence = torch.stack(drawn).mean(0).clamp(0, 1)
        else:
            temperature = config["temperature"] * (self.map[0] if config["map"] == "temperature" else 1)
            confidence = _sums(_softmax(scores.double() / temperature, list_of, count) * first, list_of, count)
        mapped = self._mapped(confidence.cpu().numpy())[list_of.cpu().numpy()]
        output["confidence"] = mapped
        output["k"] = config["k"]
        output["abstain"] = mapped < config["threshold"]
        if promised is not None:
            rows = self._query_scores(promised, scores, failure, list_of, output["rank"].to_numpy(), numbers)
            promised.spread(output, rows, list_of.cpu().numpy())
        return output

    def _query_scores(
        self,
        promised: Rule,
        scores: torch.Tensor,
        failure: torch.Tensor,
        list_of: torch.Tensor,
        ranks: NDArray[np.int64],
        numbers: list[Any],
    ) -> NDArray[np.float64]:
        """The score of each query by which it is answered, (Q,), from those of n candidates; ``failure``: ln(1 - c)."""
        count = int(list_of.max()) + 1
        if promised.score == "c":
            first = torch.from_numpy(ranks <= promised.k).to(self.device)
            confidence: NDArray[np.float64] = -_sums(failure * first, list_of, count).expm1().cpu().numpy()
            return confidence
        values = scores.cpu().numpy()
        if promised.score == BM25:
            values = np.asarray(numbers[self.config["number_names"].index(BM25)])
        return by(promised.score, padded(values, list_of.cpu().numpy(), count), promised.k, promised.temperature)

    def _scores(
        self,
        list_of: torch.Tensor,
        queries: list[str],
        texts: list[str],
        codes: list[Any],
        numbers: list[Any],
        nodes: torch.Tensor | None,
        size: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Scores, α and β of n candidates, (n,) each, and their z (n, h). Computes the same as VERA's ``model.py``."""
        w = {name.removeprefix("backbone."): side for name, side in self.weights.items()}
        count = int(list_of.max()) + 1
        sides = (self.encoder(side, size).vectors for side in (queries, texts))
        query, text = (functional.normalize(side, eps=1e-8) for side in sides)
        scale = query.shape[1] ** 0.5
        plain = torch.tensor(np.array(numbers, np.float32).reshape(len(numbers), len(queries)).T, device=self.device)
        feature = torch.cat([(plain - w["mean"]) / w["deviation"], (query * text).sum(1, keepdim=True)], 1)
        among = torch.cat([feature, _standardised(feature, list_of, count)], 1)
        projected = functional.linear(query * scale, w["query.weight"], w["query.bias"])
        candidate = functional.linear(text * scale, w["text.weight"], w["text.bias"])
        candidate = candidate + functional.linear(among, w["number.weight"])
        for column in codes:
            candidate = candidate + w["category.weight"][torch.tensor(column, device=self.device)]
        for layer in range(self.config.get("graph_layers", 0)):
            assert nodes is not None
            candidate = _passed(candidate, nodes, w, f"layers.{layer}.")
        mixed = functional.linear(projected * candidate, w["match.weight"], w["match.bias"])
        mixed = mixed + functional.linear(candidate, w["own.weight"]) + functional.linear(projected, w["asked.weight"])
        z = functional.layer_norm(functional.gelu(mixed), mixed.shape[1:], w["norm.weight"])
        scores = self._ranking(z)
        if self.config["method"] == "softmax":
            return scores, torch.ones_like(scores), torch.ones_like(scores), z
        evidence_input = z
        if self.config["context"]:
            scaled = z * self.config["scales"]["beside"]
            evidence_input = torch.cat([scaled, self._lead(scores, list_of, count), among], 1)
        hidden = functional.gelu(functional.linear(evidence_input, w["evidence.0.weight"], w["evidence.0.bias"]))
        a, b = functional.linear(hidden, w["evidence.2.weight"], w["evidence.2.bias"]).unbind(1)
        if self.config["method"] == "vera" and self.config.get("evidence_map", "exponential") == "exponential":
            largest = self.config["scales"]["largest"]
            a, b = (torch.where(side > 0, grown(side, largest), side) for side in (a, b))
        positive, negative = self.config["priors"]
        alpha = positive + functional.softplus(a)
        beta = negative + functional.softplus(b)
        return (alpha.log() - beta.log() if self.config["method"] == "edl" else scores), alpha, beta, z

    def _ranking(self, z: torch.Tensor) -> torch.Tensor:
        """The scores of the ranking head, (n,)."""
        return functional.linear(z, self.weights["ranking.weight"]).squeeze(1)

    def _lead(self, scores: torch.Tensor, list_of: torch.Tensor, count: int) -> torch.Tensor:
        """How each score compares with the query's other scores, (n, 5). See ``_lead`` in VERA's ``model.py``."""
        scales = self.config["scales"]
        none = scores.new_full((count,), -math.inf)
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
        if kind == "none" or (kind == "temperature" and self.config["confidence"] == "softmax"):
            return confidence
        if kind == "isotonic":
            x, y = self.map.reshape(2, -1)
            steps: NDArray[np.float64] = np.interp(confidence, x, y)
            return steps
        clipped = np.clip(confidence, EDGE, 1 - EDGE)
        logit = np.log(clipped) - np.log1p(-clipped)
        logit = logit / self.map[0] if kind == "temperature" else self.map[0] * logit + self.map[1]
        mapped: NDArray[np.float64] = 1 / (1 + np.exp(-logit))
        return mapped


def _passed(candidate: torch.Tensor, nodes: torch.Tensor, w: dict[str, torch.Tensor], layer: str) -> torch.Tensor:
    """A layer of message passing: see ``Messages`` in VERA's ``model.py``. (n, h) to (n, h)."""
    both = nodes.flatten()
    count = int(nodes.max()) + 1
    sums = candidate.new_zeros(count, candidate.shape[1]).index_add(0, both, candidate.repeat(2, 1))
    degree = candidate.new_zeros(count).index_add(0, both, candidate.new_ones(len(both)))
    subject, target = (sums / degree.unsqueeze(1))[nodes]
    message = functional.linear(subject, w[f"{layer}subject.weight"], w[f"{layer}subject.bias"])
    return candidate + functional.gelu(message + functional.linear(target, w[f"{layer}target.weight"]))


def _sums(values: torch.Tensor, list_of: torch.Tensor, count: int) -> torch.Tensor:
    return values.new_zeros(count).index_add(0, list_of, values)


def grown(side: torch.Tensor, largest: float) -> torch.Tensor:
    """``e^x - 1`` up to ``largest``, continued linearly."""
    low = side.clamp(0, largest)
    return low.expm1() + math.exp(largest) * (side - low)


def _softmax(scores: torch.Tensor, list_of: torch.Tensor, count: int) -> torch.Tensor:
    """The softmax over each list's scores, (n,)."""
    best = scores.new_full((count,), -math.inf).scatter_reduce(0, list_of, scores, "amax")
    raised = (scores - best[list_of]).exp()
    return raised / _sums(raised, list_of, count)[list_of]


def _standardised(features: torch.Tensor, list_of: torch.Tensor, count: int) -> torch.Tensor:
    """Features with mean 0 and standard deviation 1 within each list, (n, F)."""
    zeros = features.new_zeros(count, features.shape[1])
    sizes = zeros.index_add(0, list_of, torch.ones_like(features))
    centred = features - (zeros.index_add(0, list_of, features) / sizes)[list_of]
    deviation = (zeros.index_add(0, list_of, centred.square()) / sizes).sqrt()[list_of]
    return centred / torch.where(deviation > 1e-6, deviation, 1)


def words_of(text: str) -> str:
    """The words of names of a graph such as ``/film/film/country`` or ``united_kingdom``."""
    return " ".join(text.replace("_", " ").replace("/", " ").split())
