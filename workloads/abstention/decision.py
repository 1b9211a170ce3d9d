"""Answer or abstain: the rule that ``predict(..., risk=)`` asks a served model for.

Exported with the predictors together with ``guarantees.py`` and ``scores.py``; needs nothing else of the package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .guarantees import Answering, Grid, conformal_risk_control, fewest, learn_then_test, needed
from .scores import by, padded

PARAMS = {"risk": 0.0, "delta": 0.1, "promise": "ltt", "abstain_by": "", "success": "", "least_coverage": 0.0}
"""Parameters of ``predict`` of a model with an abstention part, and their defaults."""

PROMISES = ("ltt", "crc")
KEY = "abstention"
"""In the configuration of a model and in ``attrs`` of its predictions."""


@dataclass(frozen=True, eq=False)
class Rule:
    """Queries whose score is at least the threshold are answered.

    ``score`` and ``success``: which kind, with the softmax's ``k`` and ``temperature``. ``calibration`` (n,): the
    scores of the calibration queries.
    """

    risk: float
    delta: float
    promise: str
    score: str
    success: str
    k: int
    temperature: float
    answering: Answering
    calibration: NDArray[np.float64]

    def decide(self, scores: NDArray[np.floating[Any]]) -> tuple[NDArray[np.bool_], list[str]]:
        """Which queries are answered, (Q,), and for each other one the reason."""
        answered = scores >= self.answering.threshold
        bound = f"is below {self.answering.threshold:.4g}, the lowest that keeps the risk of {self.risk:g}"
        reasons = [f"{self.score} of {value:.4g} {bound}" for value in scores.tolist()]
        return answered, ["" if yes else reason for yes, reason in zip(answered.tolist(), reasons)]

    def mark(self, output: pd.DataFrame, values: NDArray[np.floating[Any]]) -> None:
        """Add ``abstain`` and ``reason`` to rows of candidates, from their scores (n,). A list has one ``query``."""
        lists, queries = pd.factorize(output["query"])
        scores = by(self.score, padded(values, lists.astype(np.int64), len(queries)), self.k, self.temperature)
        self.spread(output, scores, lists.astype(np.int64))

    def spread(self, output: pd.DataFrame, scores: NDArray[np.floating[Any]], lists: NDArray[np.int64]) -> None:
        """Add ``abstain`` and ``reason`` to rows, from the score of each query (Q,) and the query of each row (n,)."""
        answered, reasons = self.decide(scores)
        output["abstain"] = ~answered[lists]
        output["reason"] = [reasons[one] for one in lists.tolist()]
        output.attrs.update(self.attrs(scores, answered))

    def attrs(self, scores: NDArray[np.floating[Any]], answered: NDArray[np.bool_]) -> dict[str, Any]:
        """What ``orchestrator predict`` sums up over all rows: plain values, one a query."""
        return {
            KEY: {
                "scores": np.asarray(scores, np.float64).tolist(),
                "answered": answered.tolist(),
                "calibration": self.calibration.tolist(),
                "promise": self.sentence(),
            }
        }

    def sentence(self) -> str:
        """The promise."""
        n = self.answering.queries
        if self.promise == "crc":
            return (
                f"of all queries, at most {self.risk:.4g} are answered without {self.success} on average over draws of "
                f"{n} calibration queries"
            )
        return (
            f"of the answered queries, at most {self.risk:.4g} fail ({self.success}), with a probability of at least "
            f"{1 - self.delta:.4g} over the draw of {n} calibration queries"
        )


def rule(
    weights: Mapping[str, NDArray[Any]], config: Mapping[str, Any], *, system: str = "", **given: Any
) -> Rule | None:
    """The rule for the parameters of ``predict``, a subset of :data:`PARAMS`; None without ``risk``.

    With several successes, separated by commas, each has its share of ``delta``, and the first one that answers at
    least ``least_coverage`` of the calibration queries is taken, else the one that answers most. ``system``: the prefix
    of the successes of the ranking that is returned, where a model has several.

    Raises:
        TypeError: a name is not one of :data:`PARAMS`.
        ValueError: the model has no abstention part, a value is not valid, or the part allows no threshold; the message
            says how many queries would be needed.
    """
    if strange := given.keys() - PARAMS.keys():
        raise TypeError(f"predict has no parameter {min(strange)!r}")
    values = {**PARAMS, **given}
    risk = float(values["risk"])
    delta = float(values["delta"])
    table = config.get(KEY)
    if not risk:
        return None
    if table is None:
        raise ValueError(
            f"risk={risk:g} needs queries that the model has not seen, and it was trained without them: train it with "
            "abstention_part=0.2"
        )
    for name in ("risk", "delta"):
        if not 0 < float(values[name]) < 1:
            raise ValueError(f"{name}={values[name]:g} is not between 0 and 1")
    if not 0 <= float(values["least_coverage"]) <= 1:
        raise ValueError(f"least_coverage={values['least_coverage']:g} is not from 0 to 1")
    score = str(values["abstain_by"] or table["default"][0])
    names = [name.strip() for name in str(values["success"] or table["default"][1]).split(",")]
    known = [name.removeprefix(system) for name, one in table["successes"].items() if one["system"] == system]
    for what, named, allowed in (
        ("promise", [values["promise"]], PROMISES),
        ("abstain_by", [score], table["scores"]),
        ("success", names, known),
    ):
        if unknown := [one for one in named if one not in allowed]:
            raise ValueError(f"{what}={unknown[0]} is none of {', '.join(allowed)}")
    if len(set(names)) < len(names):
        raise ValueError(f"success={values['success']} names one twice")
    if values["promise"] == "crc" and len(names) > 1:
        raise ValueError("promise=crc holds for one success, not for one that is chosen by the result. Name one")
    names = [f"{system}{name}" for name in names]
    choices = [_answering(weights, table, score, name, values, len(names)) for name in names]
    attained = [(name, one) for name, one in zip(names, choices) if one is not None]
    if not attained:
        raise ValueError(_unattainable(weights, table, score, names, values))
    wide = [pair for pair in attained if pair[1].coverage >= values["least_coverage"]]
    success, answering = wide[0] if wide else max(attained, key=lambda pair: pair[1].answered)
    scores, _ = _of(weights, table, score, success)
    temperature = table["temperatures"].get(success, 1.0) if score == "temperature" else table["plain"]
    k = table["successes"][success]["k"]
    return Rule(risk, delta, values["promise"], score, success, k, temperature, answering, scores)


def _of(
    weights: Mapping[str, NDArray[Any]], table: Mapping[str, Any], score: str, success: str, side: str = ""
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Scores and losses of the calibration queries, or with ``validation_`` of the validation part."""
    row = list(table["successes"]).index(success)
    losses = weights.get(f"{KEY}.{side}losses")
    scores = np.asarray(weights[f"{KEY}.{side}scores"], np.float64)[list(table["scores"]).index(score), row]
    return scores, None if losses is None else np.asarray(losses, np.float64)[row]


def _answering(
    weights: Mapping[str, NDArray[Any]],
    table: Mapping[str, Any],
    score: str,
    success: str,
    values: Mapping[str, Any],
    tests: int,
) -> Answering | None:
    scores, losses = _of(weights, table, score, success)
    assert losses is not None
    if values["promise"] == "crc":
        return conformal_risk_control(scores, losses, values["risk"])
    grid = Grid.of(*_of(weights, table, score, success, "validation_"))
    binary = table["successes"][success]["binary"]
    return learn_then_test(scores, losses, grid, values["risk"], values["delta"] / tests, binary)


def _unattainable(
    weights: Mapping[str, NDArray[Any]],
    table: Mapping[str, Any],
    score: str,
    names: list[str],
    values: Mapping[str, Any],
) -> str:
    """Why there is no threshold, and how many queries would be needed."""
    risk, budget = values["risk"], values["delta"] / len(names)
    estimates = []
    for name in names:
        scores, losses = _of(weights, table, score, name)
        assert losses is not None
        grid = Grid.of(*_of(weights, table, score, name, "validation_"))
        estimates.append(needed(scores, losses, grid, risk, budget))
    n = len(scores)
    start = f"risk={risk:g} cannot be promised with the {n} queries of the abstention part by the score {score}: "
    if values["promise"] == "crc":
        return f"{start}at least {int(np.ceil(1 / risk - 1 - 1e-9))} would be needed"
    least = fewest(risk, budget)
    possible = [one for one in estimates if one is not None]
    if possible and n >= least:
        return f"{start}about {min(possible)} would be needed, by how often these succeed. Ask for a higher risk"
    if n < least:
        return f"{start}at least {least} answered ones without a failure would be needed. Ask for a higher risk"
    return (
        f"{start}no number of queries would do, since no share of them shows so low a risk. Ask for a higher risk or "
        "another success, or train a better model"
    )
