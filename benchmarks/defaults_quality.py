"""Results of each workload's shortest command on its real dataset: defaults, and an encoder if there is a choice.

Each row is ``orchestrator run ROW --local`` in this process, one thread, seed 0; docs/results/defaults.md compares it
with the best row of each results page. Rows that ``results/defaults_quality.json`` has are not run again; ``--only``
selects rows by their beginning.
"""

from __future__ import annotations

import argparse
import shlex

from harness import HERE, commit, machine, read_results, write_results

from orchestrator import run

RESULTS = HERE / "results" / "defaults_quality.json"

LOSSES = (
    "bpr", "bce", "infonce", "decoupled", "dcl", "hcl", "dpl", "bcl", "gbpr", "mpr", "denoise_truncated",
    "denoise_reweighted", "denoise_truncated_bpr", "bprac",
)  # fmt: skip

SAMPLERS = ("popularity", "aobpr", "dns", "srns", "bns")
CONTRASTS = ("sgl", "simgcl", "lightgcl", "ncl")

ROWS: dict[str, tuple[str, ...]] = {
    **{f"recommender dataset=ml-100k loss={loss}": ("ndcg_at_20",) for loss in LOSSES},
    "recommender dataset=ml-100k loss=dpl epochs=200": ("ndcg_at_20",),
    **{f"recommender dataset=ml-100k sampler={sampler}": ("ndcg_at_20",) for sampler in SAMPLERS},
    "recommender dataset=ml-100k backbone=lightgcn": ("ndcg_at_20",),
    **{f"recommender dataset=ml-100k backbone=lightgcn contrast={method}": ("ndcg_at_20",) for method in CONTRASTS},
    **{
        f"recommender dataset=ml-1m {words}".rstrip(): ("ndcg_at_20",)
        for words in ("", "backbone=lightgcn", "weight_decay=1e-5", "backbone=lightgcn weight_decay=1e-5")
    },
    "bi_encoder dataset=stsb encoder=minilm epochs=2": ("spearman",),
    "vera dataset=scifact encoder=minilm": ("mrr", "calib/nll"),
    "lifelong dataset=classic-ir encoder=minilm epochs=6": ("average_mrr_at_10",),
}
"""Words of each command, and the metrics to show."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose words begin so")
    chosen = parser.parse_args()
    results = read_results(RESULTS)
    for row, metrics in ROWS.items():
        if row.startswith(chosen.only) and row not in results:
            workload, *words = shlex.split(row)
            settings = dict(word.split("=") for word in words)
            done = run(workload, tracking="none", cpus_per_worker=1, **settings)
            names = [f"{split}/{metric}" for split in ("validation", "test") for metric in metrics]
            values = {name: done.metrics[name] for name in names}
            about = {"seed": 0, "epochs": done.extra["epochs"], "seconds": round(done.wall_seconds, 1)}
            results[row] = {**values, **about, "commit": commit(), "machine": machine()}
            write_results(RESULTS, results)
    print("| shortest command | measure | validation | test | epochs |\n| --- | --- | --- | --- | --- |")
    for row, metrics in ROWS.items():
        if result := results.get(row):
            for metric in metrics:
                values = " | ".join(f"{result[f'{split}/{metric}']:.4f}" for split in ("validation", "test"))
                print(f"| `{row}` | {metric} | {values} | {result['epochs']} |")


if __name__ == "__main__":
    main()
