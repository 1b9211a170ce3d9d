"""Verdicts of gates, with the values before and after. Pure functions of the evidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.errors import nearest, unknown
from orchestrator.promotion.evidence import Evidence, incomparable
from orchestrator.promotion.gates import Gates
from orchestrator.promotion.isolated_check import Measured, Tried
from orchestrator.report.statistics import (
    RESAMPLED_FROM,
    RESAMPLES,
    lower_bound,
    resampled_means,
    resampling,
    sign_flips,
    subset_means,
)

DRAWS = 300_000_000
"""Limit on units times resamples: beyond it fewer resamples are drawn, but at least 1,000."""

USABLE = "loads and predicts"

Value = float | str | None


@dataclass(frozen=True, slots=True)
class GateResult:
    """One row of the table. ``first`` also passes: there is no version to compare with."""

    gate: str
    before: Value
    after: Value
    verdict: Literal["pass", "first", "refused", "skipped"]
    note: str = ""


def usable(tried: Tried) -> GateResult:
    """Whether the model loads and predicts in a clean process, which every promotion requires."""
    if tried.measured is None:
        return GateResult(USABLE, None, None, "refused", tried.error or "")
    note = f"in {tried.measured.load_seconds:.2g} s, {tried.measured.milliseconds:.3g} ms a call, in a clean process"
    return GateResult(USABLE, None, None, "pass", note)


def check_metrics(gates: Gates, after: Evidence) -> None:
    """Raise UserError with the nearest name for a gate on a metric that the run does not have."""
    compared = [*([gates.better] if isinstance(gates.better, str) else []), *gates.guard]
    # Of a block for several models minimize may name metrics of others, but not one that is nearly a compared one.
    misspelt = [name for name in gates.minimize if name not in compared and nearest(name, compared)]
    for name in [*compared, *misspelt]:
        if after.metric_names and name not in after.metric_names:
            raise unknown(f"metric of version {after.version}'s run", name, after.metric_names)


def compare(gates: Gates, before: Evidence | None, after: Evidence) -> Iterator[GateResult]:
    """The verdicts of ``better`` and ``guard``. Raises UserError if the run's workload is not installed."""
    if not gates.compares:
        return
    objectives = after.objectives() if after.spec else ()
    minimized = {*gates.minimize, *(after.minimized() if after.spec else ())}
    if gates.better:
        metric = gates.better if isinstance(gates.better, str) else objectives[0].metric if objectives else "?"
        yield _difference("better", metric, before, after, gates.margin, gates.confidence, metric in minimized)
    for metric, tolerance in gates.guard.items():
        yield _difference("not worse", metric, before, after, -tolerance, gates.confidence, metric in minimized)


def limits(gates: Gates, before: Measured | None, after: Measured) -> Iterator[GateResult]:
    """The verdicts of the limits on latency and size."""
    for name, limit, field in (
        ("latency (ms a call)", gates.latency_ms, "milliseconds"),
        ("size (MB)", gates.size_mb, "megabytes"),
    ):
        if limit is not None:
            value: float = getattr(after, field)
            old: float | None = getattr(before, field, None)
            yield GateResult(name, old, value, "pass" if value <= limit else "refused", f"at most {limit:g}")


def signature(before: Any, after: Any) -> GateResult:
    """Whether callers of a model with signature ``before`` can call one with ``after`` without changes."""
    if before is None:
        return GateResult("signature", None, None, "first", "nothing to be compatible with")
    trouble = "it has no signature" if after is None else next(_incompatible(before, after), "")
    return GateResult("signature", None, None, "refused" if trouble else "pass", trouble or "compatible")


def _difference(
    gate: str, metric: str, before: Evidence | None, after: Evidence, bar: float, confidence: float, minimized: bool
) -> GateResult:
    """Whether ``metric`` is better than before by more than ``bar`` (below 0: worse by at most that)."""
    name = f"{gate}: {metric}{' (less is better)' if minimized else ''}"
    value = after.metrics.get(metric)
    if before is None:
        return GateResult(name, None, value, "first", "no version to compare with")
    old = before.metrics.get(metric)
    if trouble := incomparable(before, after):
        return GateResult(name, old, value, "refused", trouble)
    assert before.units is not None
    assert after.units is not None
    sign = -1.0 if minimized else 1.0
    if metric not in before.units or metric not in after.units:
        if gate == "better" or old is None or value is None:
            return GateResult(name, old, value, "refused", f"not both runs have {metric} of each unit")
        passed = sign * (value - old) >= bar
        note = "of the whole split, without values of units"
        return GateResult(name, old, value, "pass" if passed else "refused", note)
    units = before.units[[metric]].join(after.units[[metric]], lsuffix="_before", rsuffix="_after")
    lost = int((units[f"{metric}_after"].isna() & units[f"{metric}_before"].notna()).sum())
    if lost:
        trouble = f"{lost} of {len(units)} units have a value in version {before.version} and none in {after.version}"
        return GateResult(name, old, value, "refused", trouble)
    pairs = units.dropna()
    olds, news = (pairs[f"{metric}_{side}"].to_numpy(dtype="float64") for side in ("before", "after"))
    least = _least(sign * (news - olds), confidence)
    if least is None:
        return GateResult(name, old, value, "refused", _too_few(len(pairs), confidence))
    passed = least > bar if gate == "better" else least >= bar
    wanted = f"above {bar:g}" if gate == "better" else f"from {bar:g}"
    method = (sign_flips if len(pairs) < RESAMPLED_FROM else resampling)(len(pairs))
    note = f"by {least:+.4g} or more at {confidence:.3g} over {len(pairs)} units ({method}); wanted {wanted}"
    if missing := len(units) - len(pairs):
        note += f"; units without a value, left out: {missing}"
    return GateResult(name, float(olds.mean()), float(news.mean()), "pass" if passed else "refused", note)


def _least(differences: Any, confidence: float) -> float | None:
    """One-sided lower bound of the mean paired difference, by a seeded percentile bootstrap over the units.

    For many units it is that of the normal distribution, for fewer than :data:`RESAMPLED_FROM` that of sign flips; None
    if they are too few for the confidence.
    """
    import numpy as np

    if len(differences) < RESAMPLED_FROM:
        return lower_bound(subset_means(differences), 1 - confidence)
    resamples = max(1000, min(RESAMPLES, DRAWS // len(differences)))
    return float(np.quantile(resampled_means(differences, resamples), 1 - confidence))


def _too_few(units: int, confidence: float) -> str:
    """The sentences for too few units: with n of them the least share of sign flips is 2^-n, if all are tried."""
    least = next(
        (n for n in range(2, RESAMPLED_FROM) if 1 / min(2**n, RESAMPLES) <= 1 - confidence + 1e-12), RESAMPLED_FROM
    )
    return (
        f"Too few units for a confidence of {confidence:.3g}: got {units}; allowed: at least {least}. Validate on more "
        "units, or lower the gate's confidence."
    )


WIDER = {"integer": ("long", "double"), "float": ("double",)}
"""Other types that accept the values of a type, since MLflow's check converts them without loss."""


def _incompatible(before: Any, after: Any) -> Iterator[str]:
    """All differences that would break a caller."""
    old = _columns(before.inputs)
    new = _columns(after.inputs)
    for name, spec in new.items():
        if name not in old:
            if spec.required:
                yield f"it needs the input {name}, which callers do not give"
        elif not _takes(old[name].type, spec.type):
            yield f"its input {name} is {_named(spec.type)}, before {_named(old[name].type)}"
        elif spec.required and not old[name].required:
            yield f"its input {name} is required, before optional"
    old = _columns(before.outputs)
    new = _columns(after.outputs)
    for name, spec in old.items():
        if name not in new:
            yield f"its output lacks {name}"
        elif new[name].type != spec.type:
            yield f"its output {name} is {_named(new[name].type)}, before {_named(spec.type)}"
    params = {spec.name: spec for spec in after.params or ()}
    for spec in before.params or ():
        if spec.name not in params:
            yield f"it lacks the parameter {spec.name}"
        elif not _takes(spec.dtype, params[spec.name].dtype) or params[spec.name].shape != spec.shape:
            yield f"its parameter {spec.name} is {_named(params[spec.name].dtype)}, before {_named(spec.dtype)}"
    if _unnamed(before.inputs) != _unnamed(after.inputs) or _unnamed(before.outputs) != _unnamed(after.outputs):
        yield "its tensors have other types or shapes"


def _columns(schema: Any) -> dict[str, Any]:
    return {} if _unnamed(schema) or schema is None else schema.input_dict()


def _unnamed(schema: Any) -> list[dict[str, Any]] | None:
    """A schema without named columns (tensors, or one column) as a list; None for one with names."""
    if schema is None or (schema.has_input_names() and not schema.is_tensor_spec()):
        return None
    described: list[dict[str, Any]] = schema.to_dict()
    return described


def _takes(given: Any, wanted: Any) -> bool:
    return given == wanted or _named(wanted) in WIDER.get(_named(given), ())


def _named(kind: Any) -> str:
    return str(getattr(kind, "name", kind))
