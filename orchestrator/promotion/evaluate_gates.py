"""Evaluate the gates of a version: gather evidence, run the model in a clean process, judge every gate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestrator.promotion import gate_results, isolated_check
from orchestrator.promotion.evidence import gather
from orchestrator.promotion.gate_results import GateResult
from orchestrator.promotion.gates import Gates
from orchestrator.promotion.isolated_check import Unusable


def judge(client: Any, model: str, gates: Gates, target: Any, current: Any | None) -> list[GateResult]:
    """The verdicts on version ``target`` compared with ``current``, the version of the alias (None: no version).

    If the model does not load and predict, no other gate is evaluated. Raises UserError for a gate on a metric that
    the run of ``target`` does not have.
    """
    before = after = None
    if gates.compares:
        after = gather(client, target)
        gate_results.check_metrics(gates, after)
        before = gather(client, current) if current else None
    tried = isolated_check.try_out(client, model, target)
    verdicts = [gate_results.usable(tried)]
    if tried.measured is None:
        return verdicts
    if gates.signature == "compatible":
        verdicts.append(_signature(client, model, tried, current))
    if after is not None:
        verdicts.extend(gate_results.compare(gates, before, after))
    if gates.latency_ms or gates.size_mb:
        current_measured = isolated_check.try_out(client, model, current).measured if current else None
        verdicts.extend(gate_results.limits(gates, current_measured, tried.measured))
    return verdicts


def force(client: Any, model: str, gates: Gates, target: Any) -> list[GateResult]:
    """The verdict that ``--force`` does not skip, and a row for each gate that it skips."""
    return [gate_results.usable(isolated_check.try_out(client, model, target)), *_skipped(gates)]


def _signature(client: Any, model: str, tried: isolated_check.Tried, current: Any | None) -> GateResult:
    if current is None:
        return gate_results.signature(None, tried.signature)
    try:
        return gate_results.signature(isolated_check.signature(client, model, current), tried.signature)
    except Unusable as error:  # a model that does not load has no callers
        return GateResult("signature", None, None, "first", f"of version {current.version}, {error}")


def _skipped(gates: Gates) -> Iterator[GateResult]:
    configured = {
        "signature": gates.signature == "compatible",
        "better": bool(gates.better),
        **{f"not worse: {metric}": True for metric in gates.guard},
        "latency": gates.latency_ms is not None,
        "size": gates.size_mb is not None,
    }
    return (GateResult(name, None, None, "skipped", "forced") for name, wanted in configured.items() if wanted)
