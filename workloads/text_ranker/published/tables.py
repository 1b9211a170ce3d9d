"""Our comparisons of the ranking losses, and of long documents. There are no published values to compare with."""

from __future__ import annotations

from dataclasses import replace

from workloads.published import Method, Regime, Table

REGIME = Regime(
    "text_ranker",
    "ranker",
    dataset="scifact",
    unit="query",
    plan={"precision": "bf16"},
    quick={"epochs": 1},
    seeds=3,
    trials=0,
)

_EPOCHS = 4

LOSSES = Table(
    "ranker-losses",
    "Losses of a ranker of BM25's top 20, and the same interpolated with BM25",
    "the note's four losses, with listwise softmax and LambdaRank",
    REGIME,
    {
        "RankNet": Method({"loss": "ranknet"}, epochs=_EPOCHS),
        "RankNet, S = 0 of judged pairs": Method({"loss": "ranknet", "ties": "judged"}, epochs=_EPOCHS),
        "adaptive RankNet": Method({"loss": "adaptive_ranknet"}, epochs=_EPOCHS),
        "margin": Method({"loss": "margin"}, epochs=_EPOCHS),
        "margin, learnt": Method({"loss": "margin", "learnable": True}, epochs=_EPOCHS),
        "adaptive margin": Method({"loss": "adaptive_margin"}, epochs=_EPOCHS),
        "listwise softmax": Method({"loss": "listwise"}, epochs=_EPOCHS),
        "LambdaRank": Method({"loss": "lambdarank"}, epochs=_EPOCHS),
    },
    compared_by="ndcg_at_10",
    blocks=(("scifact",), ("cran",)),
    metrics=("ndcg_at_10", "mrr_at_10", "map", "fused_ndcg_at_10", "bm25_ndcg_at_10"),
    tested=("fused_ndcg_at_10",),
    common={"encoder": "minilm", "max_length": 192, "eval_candidates": 20, "lr": 5e-5},
    # Cranfield has 90 training queries, too few for the new head of a cross-encoder.
    on={"cran": {"positives": 4, "negatives": 4, "batch_size": 4, "scoring": "bi", "lr": 2e-5}},
)

PASSAGES = replace(
    LOSSES,
    id="ranker-passages",
    title="Long documents cut, and by the best of several passages",
    source="ours; Dai and Callan, SIGIR 2019",
    methods={
        "cut at 192 tokens": Method({}, epochs=_EPOCHS),
        "best of 8 passages": Method({"long_documents": "best_passage"}, epochs=_EPOCHS),
    },
    blocks=(("scifact",),),
    metrics=("ndcg_at_10", "mrr_at_10", "map", "fused_ndcg_at_10", "truncated"),
    reference="cut at 192 tokens",
    on={},
)
