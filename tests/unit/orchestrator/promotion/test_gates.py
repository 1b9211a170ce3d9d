"""Gates: read from a file, judged over evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from mlflow.models import ModelSignature, infer_signature
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

from orchestrator.errors import USAGE, UserError
from orchestrator.promotion import gate_results, gates
from orchestrator.promotion.evidence import Evidence, incomparable
from orchestrator.promotion.gate_results import GateResult
from orchestrator.promotion.gates import Gates
from orchestrator.promotion.isolated_check import Measured, Tried

N = 400


def read(tmp_path: Path, text: str, model: str = "rec", alias: str = "champion") -> Gates:
    file = tmp_path / "Gates.yaml"
    file.write_text(text)
    return gates.read(file, tmp_path, model, alias)


# The file


def test_only_the_most_specific_block_of_the_gates_file_applies(tmp_path: Path) -> None:
    text = """
        default: {size_mb: 1}
        rec:
          default: {size_mb: 2, better: true}
          champion: {latency_ms: 3}
          empty:
    """
    found = {
        (model, alias): read(tmp_path, text, model, alias)
        for model, alias in [("other", "champion"), ("rec", "challenger"), ("rec", "champion"), ("rec", "empty")]
    }
    assert found == {
        ("other", "champion"): Gates(size_mb=1),
        ("rec", "challenger"): Gates(size_mb=2, better=True),
        ("rec", "champion"): Gates(latency_ms=3),
        ("rec", "empty"): Gates(),
    }


def test_without_a_gates_file_only_the_signature_is_checked(tmp_path: Path) -> None:
    assert gates.read(None, tmp_path, "rec", "champion") == Gates()
    assert (Gates().compares, Gates().signature) == (False, "compatible")


@pytest.mark.parametrize(("word", "better"), [("yes", True), ("off", False), ("true", True), ("auc", "auc")])
def test_better_accepts_yaml_booleans_and_metric_names(word: str, better: bool | str, tmp_path: Path) -> None:
    (tmp_path / "gates.yaml").write_text(f"default: {{better: {word}}}")
    assert gates.read(None, tmp_path, "rec", "champion") == Gates(better=better)


def test_gates_yaml_in_the_home_is_the_default_file(tmp_path: Path) -> None:
    (tmp_path / "gates.yaml").write_text("default: {better: validation/auc}")
    assert gates.read(None, tmp_path, "rec", "champion") == Gates(better="auc")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "default: {}\nrec:\n  champion:\n    beter: true\n",
            r"Gates.yaml, rec.champion: Unknown gate \(line 4\): got 'beter'; allowed: better, .*Did you mean 'better'",
        ),
        ("default: {latency: 3}", "got 'latency'.*Did you mean 'latency_ms'"),
        ("other:\n  x: {size: 3}", "Gates.yaml, other.x: Unknown gate"),  # blocks of other models are checked too
        ("rec: {champion: {better: test/auc}}", "such as auc: the test split must not affect choices"),
        ("rec: {champion: {guard: {test/auc: 0}}}", "such as auc: the test split must not affect choices"),
        ("rec: {champion: {guard: {auc: -0.1}}}", "tolerances from 0, also for auc"),
        ("rec: {champion: {guard: {auc: much}}}", r"Gate guard \(line 1\) is not valid: got 'much'"),
        ("rec: {champion: {confidence: 1}}", "less than 1"),
        ("rec: {champion: {signature: compatable}}", "Did you mean 'compatible'"),
        ("rec: {champion: 3}", "line 1: rec.champion must be a mapping"),
        ("rec: true", "line 1: rec must be a mapping"),
        ("rec: [", "is not valid YAML"),
    ],
)
def test_invalid_gates_file_raises_user_error(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path, text)
    assert caught.value.code == USAGE


def test_missing_named_gates_file_raises_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none.yaml does not exist"):
        gates.read(tmp_path / "none.yaml", tmp_path, "rec", "champion")


# The evidence


def evidence(version: str, values: Any = None, **changed: Any) -> Evidence:
    """A run's evidence with one value a unit for the metrics of the recommender's objective."""
    spec = {"workload": "recommender", "params": {"dataset": "a", "split_seed": 0, "lr": 0.1}, "plan": {}}
    spec["params"].update(changed.pop("params", {}))  # type: ignore[attr-defined]
    values = np.zeros(N) if values is None else np.asarray(values, dtype=float)
    frame = pd.DataFrame({"ndcg_at_20": values, "error": values}, index=pd.RangeIndex(len(values), name="id"))
    mean = float(frame["error"].mean())
    metrics = {"ndcg_at_20": mean, "error": mean, "calibration": 0.5}
    known = {"version": version, "spec": spec, "fingerprint": "f", "metrics": metrics, "units": frame}
    return Evidence(**(known | changed))


def noise(seed: int, mean: float, scale: float = 0.1) -> Any:
    return np.random.default_rng(seed).normal(mean, scale, N)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ({}, {"params": {"lr": 0.2}}, None),
        ({"spec": None}, {}, "run of version 1 does not say on what data"),
        ({}, {"fingerprint": None}, "run of version 2 does not say on what data"),
        ({"units": None}, {}, "version 1 has no validation units"),
        (
            {},
            {"seen": True},
            "started from weights that were refitted on its validation part, or trained on another split",
        ),
        ({"fingerprint": "g"}, {}, "version 1 was validated on other data: the datasets' fingerprints differ"),
        ({"params": {"split_seed": 3}}, {}, "other data: split_seed is 3 there and 0 here"),
        ({}, {"params": {"dataset": "b"}}, "other data: dataset is a there and b here"),
        ({"values": np.zeros(N - 3)}, {}, "3 validation units are in only one of both versions"),
        ({"units": pd.DataFrame({"x": [1, 2]}, index=[7, 7])}, {}, "version 1 have an id twice"),
    ],
)
def test_only_values_of_the_same_evaluation_data_are_compared(
    before: Mapping[str, Any], after: Mapping[str, Any], reason: str | None
) -> None:
    old, new = evidence("1", **before), evidence("2", **after)
    found = incomparable(old, new)
    assert found is None if reason is None else reason in str(found)
    (verdict,) = gate_results.compare(Gates(better="ndcg_at_20"), old, new)
    assert verdict.verdict == "refused"
    assert (reason or "wanted above 0") in verdict.note


def test_unknown_metric_in_a_gate_raises_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match=r"Unknown metric of version 2's run: got 'ndgc_at_20'.*'ndcg_at_20'") as caught:
        gate_results.check_metrics(Gates(guard={"ndgc_at_20": 0}), evidence("2"))
    assert caught.value.code == USAGE
    with pytest.raises(UserError, match=r"Unknown metric of version 2's run: got 'eror'.*'error'"):
        gate_results.check_metrics(Gates(guard={"error": 0}, minimize=("eror",)), evidence("2"))
    gate_results.check_metrics(Gates(guard={"error": 0}, minimize=("error", "perplexity")), evidence("2"))
    gate_results.check_metrics(Gates(better="error", guard={"calibration": 0}), evidence("2"))


def test_better_gate_of_an_uninstalled_workload_raises_user_error() -> None:
    other = evidence("2", spec={"workload": "theirs", "params": {}, "plan": {}})
    with pytest.raises(UserError, match="is unknown here: Unknown workload: got 'theirs'"):
        list(gate_results.compare(Gates(better=True), None, other))


# Better, not worse


def better(before: Evidence | None, after: Evidence, **asked: Any) -> GateResult:
    (verdict,) = gate_results.compare(Gates(**{"better": True, **asked}), before, after)
    return verdict


def test_better_gate_passes_a_gain_and_refuses_a_decrease() -> None:
    old, new = evidence("1", noise(0, 0.3)), evidence("2", noise(1, 0.4))
    assert (better(old, new).gate, better(old, new).verdict) == ("better: ndcg_at_20", "pass")
    assert better(new, old).verdict == "refused"


def test_better_gate_compares_paired_units_not_means() -> None:
    """Units differ far more than the models: an unpaired comparison would not detect the gain."""
    units = noise(0, 0.5, scale=1.0)
    old, new = evidence("1", units), evidence("2", units + noise(1, 0.02, scale=0.05))
    assert better(old, new).verdict == "pass"
    assert better(old, evidence("2", noise(2, 0.52, scale=1.0))).verdict == "refused"


def test_an_equal_model_is_not_better_and_not_worse() -> None:
    old, new = evidence("1", noise(0, 0.3)), evidence("2", noise(0, 0.3))
    assert better(old, new).verdict == "refused"
    assert better(old, new, better=False, guard={"ndcg_at_20": 0.0}).verdict == "pass"


def test_margin_and_confidence_make_the_better_gate_stricter() -> None:
    difference = 0.01 + 0.1 * (np.arange(N) % 2 * 2 - 1)  # standard error 0.005: 2 of them above 0
    old, new = evidence("1", np.zeros(N)), evidence("2", difference)
    assert [better(old, new, confidence=c).verdict for c in (0.9, 0.95, 0.99)] == ["pass", "pass", "refused"]
    assert better(old, new, margin=0.005).verdict == "refused"


@pytest.mark.slow
def test_the_bound_is_that_of_the_normal_distribution_for_many_units() -> None:
    differences = np.random.default_rng(0).normal(1.0, 2.0, 5000)
    error = differences.std() / math.sqrt(5000)
    assert gate_results._least(differences, 0.95) == pytest.approx(differences.mean() - 1.645 * error, abs=0.1 * error)
    assert gate_results._least(differences, 0.95) == gate_results._least(differences, 0.95)  # the same at each call


def test_less_is_better_if_the_gates_file_or_the_objective_minimizes() -> None:
    old, new = evidence("1", noise(0, 0.4)), evidence("2", noise(1, 0.3))
    for name in ("error", "validation/error"):
        down = better(old, new, better="error", minimize=(name,))
        assert (down.gate, down.verdict) == ("better: error (less is better)", "pass")
    assert better(old, new, better="error").verdict == "refused"
    spec = {**(new.spec or {}), "plan": {"objective": ["error:min"]}}
    assert better(old, evidence("2", noise(1, 0.3), spec=spec)).gate == "better: error (less is better)"


def test_guard_uses_the_metric_directions_of_the_workload() -> None:
    before, after = (evidence(str(number), metrics={"gini_at_50": value}) for number, value in ((1, 0.5), (2, 0.9)))
    guarded = Gates(guard={"gini_at_50": 0.01})
    assert [(v.gate, v.verdict) for v in gate_results.compare(guarded, before, after)] == [
        ("not worse: gini_at_50 (less is better)", "refused"),
    ]
    (back,) = gate_results.compare(guarded, after, before)
    assert back.verdict == "pass"
    spec = {**(after.spec or {}), "plan": {"objective": ["gini_at_50"]}}
    assert evidence("3", spec=spec).objectives()[0].direction == "min"


@pytest.mark.parametrize(
    ("workload", "metric"),
    [
        ("vera", "calib/brier"), ("vera", "calib/ece_at_1"), ("vera", "selective/score/risk"),
        ("vera", "selective/score/aurc_low"), ("simclr", "alignment"), ("simclr", "uniformity"),
        ("lifelong", "forgetting"),
    ],
)  # fmt: skip
def test_guard_refuses_a_rise_of_error_metrics_of_catalogue_workloads(workload: str, metric: str) -> None:
    spec = {"workload": workload, "params": {}, "plan": {}}
    before, after = (evidence(str(n), spec=spec, metrics={metric: value}) for n, value in ((1, 0.1), (2, 0.4)))
    (verdict,) = gate_results.compare(Gates(guard={metric: 0.01}), before, after)
    assert (verdict.gate, verdict.verdict) == (f"not worse: {metric} (less is better)", "refused")


def test_guard_passes_only_a_decrease_within_the_tolerance() -> None:
    old, new = evidence("1", noise(0, 0.3)), evidence("2", noise(0, 0.29))
    guarded = {tolerance: better(old, new, better=False, guard={"error": tolerance}) for tolerance in (0.005, 0.02)}
    assert {tolerance: found.verdict for tolerance, found in guarded.items()} == {0.005: "refused", 0.02: "pass"}
    assert guarded[0.02].gate == "not worse: error"


def test_guard_compares_the_reported_value_of_a_metric_without_units() -> None:
    old, new = evidence("1"), evidence("2", metrics={"calibration": 0.45})
    found = [better(old, new, better=False, guard={"calibration": t}).verdict for t in (0.04, 0.06)]
    assert found == ["refused", "pass"]
    assert better(old, new, better="calibration").verdict == "refused"  # nothing to resample


def test_units_without_a_value_are_left_out_on_both_sides() -> None:
    values = noise(0, 0.3)
    holes = np.where(np.arange(N) < 100, np.nan, values)
    found = better(evidence("1", holes), evidence("2", values + 0.1))
    assert (found.verdict, found.before) == ("pass", pytest.approx(values[100:].mean()))
    assert "over 300 units" in found.note
    assert found.note.endswith("; units without a value, left out: 100")
    assert "left out" not in better(evidence("1", values), evidence("2", values + 0.1)).note
    both = better(evidence("1", holes), evidence("2", holes + 0.1))
    assert (both.verdict, both.note.endswith("; units without a value, left out: 100")) == ("pass", True)
    assert better(evidence("1", np.full(N, np.nan)), evidence("2", values)).verdict == "refused"


@pytest.mark.parametrize("gate", [{"better": "ndcg_at_20"}, {"better": False, "guard": {"ndcg_at_20": 0.01}}])
def test_units_that_lost_their_value_are_refused(gate: dict[str, Any]) -> None:
    values = noise(0, 0.3)
    holes = np.where(np.arange(N) < 360, np.nan, values + 0.1)
    found = better(evidence("1", values), evidence("2", holes), **gate)
    assert (found.verdict, found.note) == ("refused", "360 of 400 units have a value in version 1 and none in 2")


@pytest.mark.parametrize(("units", "confidence", "least"), [(1, 0.6, 2), (2, 0.95, 5), (4, 0.95, 5), (9, 0.999, 10)])
def test_too_few_units_for_the_confidence_are_refused_with_a_remedy(units: int, confidence: float, least: int) -> None:
    """The least p-value of the 2^n signs of n units is 1 / 2^n: 4 units cannot reach a confidence of .95."""
    old, new = evidence("1", np.zeros(units)), evidence("2", np.arange(1.0, units + 1))
    for asked in ({}, {"better": False, "guard": {"error": 0.0}}):
        found = better(old, new, confidence=confidence, **asked)
        assert found.verdict == "refused"
        assert found.note == (
            f"Too few units for a confidence of {confidence}: got {units}; allowed: at least {least}. "
            "Validate on more units, or lower the gate's confidence."
        )


def test_few_units_are_judged_by_an_exact_sign_flip_test() -> None:
    old, new = evidence("1", np.zeros(5)), evidence("2", np.array([0.2, 0.1, 0.4, 0.3, 0.5]))
    found = better(old, new)
    assert found.verdict == "pass"
    assert found.note == "by +0.1 or more at 0.95 over 5 units (paired sign flips, exact); wanted above 0"
    assert better(old, evidence("2", np.array([0.2, 0.1, 0.4, 0.3, -0.01]))).verdict == "refused"
    same = better(old, old, better=False, guard={"error": 0.0})
    assert same.verdict == "pass"  # an equal model is not worse
    assert "over 400 units (paired bootstrap)" in better(evidence("1"), evidence("2", noise(1, 0.1))).note


@pytest.mark.faults  # long
@pytest.mark.parametrize("units", [2, 5, 8])
def test_equal_models_pass_with_few_units_at_most_at_the_nominal_rate(units: int) -> None:
    """300 draws without a difference at .95: the bound is .05 plus three standard errors of .0126."""
    rng = np.random.default_rng(units)
    passed = [
        better(evidence("1", rng.normal(size=units)), evidence("2", rng.normal(size=units))).verdict == "pass"
        for _ in range(300)
    ]
    assert np.mean(passed) <= 0.05 + 3 * 0.0126


def test_first_version_gets_the_verdict_first_from_comparing_gates() -> None:
    found = list(gate_results.compare(Gates(better=True, guard={"error": 0}), None, evidence("1", np.ones(N))))
    assert [(verdict.verdict, verdict.before, verdict.after) for verdict in found] == [("first", None, 1.0)] * 2


def test_run_without_a_record_is_refused_as_incomparable() -> None:
    bare = Evidence("2", None, None, {}, None)
    gate_results.check_metrics(Gates(better="ndcg_at_20"), bare)
    found = better(evidence("1"), bare)
    assert found.verdict == "refused"
    assert "does not say on what data" in found.note


# Limits and the clean process


def test_limits_report_the_values_before_and_after() -> None:
    before, after = Measured(10.0, 1.0, 5.0), Measured(20.0, 1.0, 4.0)
    found = list(gate_results.limits(Gates(latency_ms=4, size_mb=15), before, after))
    assert found == [
        GateResult("latency (ms a call)", 5.0, 4.0, "pass", "at most 4"),
        GateResult("size (MB)", 10.0, 20.0, "refused", "at most 15"),
    ]
    assert [verdict.before for verdict in gate_results.limits(Gates(size_mb=15), None, after)] == [None]
    assert list(gate_results.limits(Gates(), before, after)) == []


def test_version_that_does_not_load_is_refused() -> None:
    refused = gate_results.usable(Tried("its files are gone"))
    assert (refused.verdict, refused.note) == ("refused", "its files are gone")
    assert gate_results.usable(Tried(measured=Measured(1.0, 0.5, 2.0))).verdict == "pass"


# Signatures


def signature(
    inputs: Mapping[str, DataType], outputs: Mapping[str, DataType], params: Mapping[str, Any] | None = None,
    optional: tuple[str, ...] = (),
) -> ModelSignature:  # fmt: skip
    columns = [ColSpec(kind, name, required=name not in optional) for name, kind in inputs.items()]
    given = ParamSchema([ParamSpec(name, kind, default) for name, (kind, default) in (params or {}).items()])
    answer = Schema([ColSpec(kind, name) for name, kind in outputs.items()])
    return ModelSignature(Schema(columns), answer, given if params else None)


LONG, INTEGER, TEXT, DOUBLE = DataType.long, DataType.integer, DataType.string, DataType.double
OLD = signature({"user": INTEGER}, {"item": LONG}, {"k": (LONG, 20)})


@pytest.mark.parametrize(
    ("new", "trouble"),
    [
        (OLD, ""),
        (signature({"user": LONG}, {"item": LONG, "score": DOUBLE}, {"k": (LONG, 5), "seen": (TEXT, "x")}), ""),
        (signature({"user": INTEGER, "age": LONG}, {"item": LONG}, {"k": (LONG, 5)}, ("age",)), ""),
        (signature({"user": INTEGER, "age": LONG}, {"item": LONG}, {"k": (LONG, 5)}), "needs the input age"),
        (signature({"user": TEXT}, {"item": LONG}, {"k": (LONG, 5)}), "input user is string, before integer"),
        (signature({"user": INTEGER}, {"score": LONG}, {"k": (LONG, 5)}), "output lacks item"),
        (signature({"user": INTEGER}, {"item": INTEGER}, {"k": (LONG, 5)}), "output item is integer, before long"),
        (signature({"user": INTEGER}, {"item": LONG}), "lacks the parameter k"),
        (signature({"user": INTEGER}, {"item": LONG}, {"k": (INTEGER, 5)}), "parameter k is integer, before long"),
        (infer_signature(np.zeros((2, 3)), np.zeros(2)), "output lacks item"),
        (None, "has no signature"),
    ],
)
def test_signature_gate_passes_only_compatible_signatures(new: ModelSignature | None, trouble: str) -> None:
    found = gate_results.signature(OLD, new)
    assert found.verdict == ("refused" if trouble else "pass")
    assert trouble in found.note


def test_an_optional_input_may_not_become_required() -> None:
    optional, required = (
        signature({"user": INTEGER, "age": LONG}, {"item": LONG}, optional=names) for names in (("age",), ())
    )
    found = gate_results.signature(optional, required)
    assert (found.verdict, found.note) == ("refused", "its input age is required, before optional")
    assert gate_results.signature(required, optional).verdict == "pass"
    assert gate_results.signature(optional, optional).verdict == "pass"


def test_signature_gate_refuses_other_tensor_shapes() -> None:
    old, other = infer_signature(np.zeros((2, 3)), np.zeros(2)), infer_signature(np.zeros((2, 4)), np.zeros(2))
    assert gate_results.signature(old, old).verdict == "pass"
    assert gate_results.signature(old, other).note == "its tensors have other types or shapes"
    assert gate_results.signature(None, old).verdict == "first"
