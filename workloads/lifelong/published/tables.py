"""Our comparison of the methods on open collections. The source documents print no values to compare with."""

from __future__ import annotations

from dataclasses import replace

from workloads.published import Method, Regime, Table

REGIME = Regime(
    "lifelong",
    "l2r",
    dataset="classic-ir",
    named_by=("dataset", "memory", "compatible"),
    unit="query",
    # No early stopping: metrics change at the end of a session only.
    plan={"precision": "bf16", "patience": 0},
    quick={"epochs": 5, "steps_per_epoch": 1},
    seeds=3,
    trials=0,
)

_EPOCHS = 6  # two passes over the labelled queries in session 0, one in each later session
_COMMON = {
    "encoder": "minilm", "max_length": 48, "dropout": 0.0, "batch_size": 16, "lr": 5e-5, "n_new": 4, "candidates": 20,
}  # fmt: skip
_MEMORY = {"n_memory": 2, "capacity": 8}
_METRICS = (
    "average_mrr_at_10", "average_recall_at_100", "average_success_at_5", "forgetting", "forward_transfer",
    "documents_embedded", "bm25_average_mrr_at_10",
)  # fmt: skip

_L2R = {"new": "l2r", "memory": "isd", "compatible": "ranking", **_MEMORY}


def _method(**params: object) -> Method:
    return Method(params, epochs=_EPOCHS)


def _replay(memory: str) -> dict[str, object]:
    return {"new": "random", "memory": memory, "compatible": "frozen", **_MEMORY}


MAIN = Table(
    "l2r-main",
    "Lifelong retrieval: L2R, earlier methods and full retraining, averaged over sessions",
    "L2R notes: its two alignments, and the methods it names; ours, for no value is printed",
    REGIME,
    {
        "L2R, ranking alignment": _method(**_L2R),
        "L2R, embedding alignment": _method(**{**_L2R, "compatible": "embedding"}),
        "ER": _method(**_replay("random")),
        "MIR": _method(**_replay("mir")),
        "GSS": _method(**_replay("gss")),
        "OCS": _method(**_replay("ocs")),
        "fine-tuning": _method(new="random", memory="none", compatible="frozen"),
        "no update": _method(update="none"),
        "full retraining": _method(update="retrain", new="random"),
    },
    compared_by="average_mrr_at_10",
    blocks=(("classic-ir",), ("scifact",)),
    metrics=_METRICS,
    lower=("forgetting", "documents_embedded"),
    tested=("average_recall_at_100",),
    reference="L2R, ranking alignment",
    common=_COMMON,
)

ABLATION = replace(
    MAIN,
    id="l2r-ablation",
    title="L2R with each of its parts off, or another in its place",
    source="L2R notes, steps 1 to 4; ours, for no value is printed",
    methods={
        "L2R": _method(**_L2R),
        "negatives at random": _method(**{**_L2R, "new": "random"}),
        "diversity only, α = 0": _method(**_L2R, alpha=0.0),
        "superiority only, α = 1": _method(**_L2R, alpha=1.0),
        "no memory": _method(new="l2r", memory="none", compatible="ranking"),
        "memory at random": _method(**{**_L2R, "memory": "random"}),
        "no alignment": _method(**{**_L2R, "compatible": "frozen"}),
        "embedding alignment": _method(**{**_L2R, "compatible": "embedding"}),
        "everything embedded again": _method(**{**_L2R, "compatible": "no"}),
    },
    reference="L2R",
)

VARIANTS = replace(
    MAIN,
    id="l2r-variants",
    title="L2R with other encoders, another diversity, and queries that arrive",
    source="L2R notes: E^q and E^d, the reader's objection to ISD, drift of queries; ours, for no value is printed",
    methods={
        "L2R": _method(**_L2R),
        "encoders apart": _method(**_L2R, encoders="apart"),
        "ISD of whole vectors": _method(**_L2R, diversity="whole"),
        "no update": _method(update="none"),
    },
    reference="L2R",
    common={**_COMMON, "split_queries": "arriving"},
    metrics=(*_METRICS, "arriving_mrr_at_10", "bm25_arriving_mrr_at_10"),
)
