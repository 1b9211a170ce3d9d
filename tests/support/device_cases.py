"""Configurations that are trained on the virtual device, and where they synchronise.

``python -m tests.support.device_cases`` writes ``syncs.toml`` next to the test that compares it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from tests.support.small_vera import SMALL as SMALL_VERA
from tests.support.virtual_device import CUDA, ROOT, Log, virtual_cuda
from tests.unit.workloads.lifelong.test_conformance import SMALL as SMALL_LIFELONG
from tests.unit.workloads.simclr.test_conformance import TINY, OfFewImages
from tests.unit.workloads.text_ranker.test_workload import SMALL as SMALL_RANKER
from tests.unit.workloads.vera.test_workload import TestPlateauOverDocuments
from workloads.bi_encoder.workload import BiEncoder
from workloads.contract import Runtime
from workloads.lifelong.workload import Lifelong
from workloads.recommender.workload import Recommender
from workloads.text_ranker.workload import TextRanker
from workloads.vera.workload import Vera

SYNCS = ROOT / "tests" / "unit" / "workloads" / "syncs.toml"
PACK = "mf-pack"
"""Name of :func:`train_pack` in the file."""
RUNTIME = Runtime(device=CUDA, data=Path(), seed=7, epochs=3)


@dataclass(frozen=True)
class Case:
    """A workload, its parameters, and what differs from :data:`RUNTIME`."""

    workload: type[Any]
    params: Mapping[str, Any]
    runtime: Mapping[str, Any] = field(default_factory=dict)

    def build(self, **runtime: Any) -> Any:
        return self.workload(self.workload.Params(**self.params), replace(RUNTIME, **{**self.runtime, **runtime}))


def _recommender(runtime: Mapping[str, Any] | None = None, **params: Any) -> Case:
    return Case(Recommender, {"dim": 8, "batch_size": 4096, "lr": 0.01, **params}, runtime or {})


def _simclr(runtime: Mapping[str, Any] | None = None, **params: Any) -> Case:
    return Case(OfFewImages, {**TINY, **params}, runtime or {})


class OfImagesOnHost(OfFewImages):
    """The images do not fit on the device: a thread gathers the next batch while one is used."""

    def __init__(self, params: Any, runtime: Runtime) -> None:
        super().__init__(params, runtime)
        parts = {name: getattr(self.data, name) for name in ("train", "validation", "test")}
        on_host = {name: replace(part, images=part.images.cpu()) for name, part in parts.items()}
        self.data = replace(self.data, **on_host)


CASES: Mapping[str, Case] = {
    "mf": _recommender(quality=True),
    "lightgcn-bf16": _recommender({"precision": "bf16"}, backbone="lightgcn", layers=2),
    "dpl-dns": _recommender(loss="dpl", sampler="dns", negatives=3, positives=2, tau=0.3),
    "bcl-bns-sampled": _recommender(
        backbone="lightgcn", loss="bcl", alpha=0.9, negatives=4, sampler="bns", ecdf="sampled", ecdf_items=32
    ),
    "bns-exact": _recommender(sampler="bns", ecdf="exact"),
    "hcl-bns-batch": _recommender(loss="hcl", negatives=2, positives=2, sampler="bns", ecdf="batch"),
    "infonce-srns": _recommender(loss="infonce", negatives=2, sampler="srns", candidates=8, srns_warmup=1),
    "bcl-in-batch": _recommender({"steps_per_epoch": 8}, loss="bcl", alpha=0.9, sampler="in_batch", batch_size=128),
    "bcl-auc": _recommender(loss="bcl", alpha="auc", negatives=4),
    "bprac": _recommender(loss="bprac", prior_var="fitted", sampler="popularity"),
    "gbpr-aobpr": _recommender(loss="gbpr", sampler="aobpr", backbone="lightgcn"),
    "mpr-oracle": _recommender(loss="mpr", sampler="bns_oracle"),
    "truncated-posterior": _recommender(
        loss="denoise_truncated", drop_steps=4, sampler="bns_posterior", bns_prior="users"
    ),
    "dcl": _recommender(loss="dcl", negatives=4, positives=2),
    "sgd-batched": _recommender(optimizer="sgd_batched", batch_size=1024, weight_decay=0.01, dataset_noise=0.1),
    "simclr-bcl-lars": _simclr(
        {"accumulate": 2}, loss="bcl", optimizer="lars", lr=0.005, warmup=0.5, alpha="auc", eval_probe="never"
    ),
    "simclr-hcl-blur": _simclr(loss="hcl", blur=0.5, eval_probe="always"),
    "simclr-on-host": Case(OfImagesOnHost, {**TINY, "loss": "hcl"}, {"steps_per_epoch": 2}),
    "simclr-resnet-bf16": _simclr(
        {"precision": "bf16", "steps_per_epoch": 1}, encoder="resnet18", optimizer="sgd", eval_probe="never"
    ),
    "bi-encoder": Case(BiEncoder, {"batch_size": 160}),
    "bi-encoder-bcl-max": Case(
        BiEncoder, {"batch_size": 160, "loss": "bcl", "pooling": "max"}, {"precision": "bf16", "accumulate": 2}
    ),
    "bi-encoder-cosent-cls": Case(BiEncoder, {"batch_size": 160, "loss": "cosent", "pooling": "cls"}),
    "ranker-cross": Case(TextRanker, SMALL_RANKER),
    "ranker-bi-margin": Case(
        TextRanker,
        {**SMALL_RANKER, "scoring": "bi", "loss": "adaptive_margin", "learnable": True, "positives": 2, "hard": 0.5},
    ),
    "vera": Case(Vera, SMALL_VERA),
    "vera-dropout": Case(
        Vera,
        {**SMALL_VERA, "method": "softmax", "confidence": "mc_dropout", "dropout": 0.5, "stage_share": None},
        {"epochs": 2},
    ),
    "vera-documents": Case(Vera, TestPlateauOverDocuments.params),
    "lifelong": Case(Lifelong, SMALL_LIFELONG),
    "lifelong-ocs": Case(Lifelong, {**SMALL_LIFELONG, "memory": "ocs", "compatible": "no", "new": "random"}),
    "lifelong-frozen": Case(
        Lifelong, {**SMALL_LIFELONG, "memory": "random", "compatible": "frozen"}, {"precision": "bf16"}
    ),
    "lifelong-mir": Case(Lifelong, {**SMALL_LIFELONG, "memory": "mir"}),
}


def train(case: Case, log: Log) -> Any:
    """Train two epochs; ``log`` then has the second one alone."""
    built = case.build()
    built.train_epoch(1)
    log.clear()
    built.train_epoch(2)
    return built


def train_pack(log: Log) -> tuple[Any, list[Any]]:
    """Train a pack of three for two epochs and return it with its members; ``log`` then has the second epoch alone."""
    members = [_recommender({"seed": seed}, lr=0.005 * seed, weight_decay=1e-4 * seed).build() for seed in range(1, 4)]
    pack = Recommender.pack(members)
    pack.train_epoch([1] * 3)
    log.clear()
    pack.train_epoch([2] * 3)
    return pack, members


def counted(log: Log) -> dict[str, int]:
    """Times that an epoch waits, by ``file:function (kind)``."""
    both = log.syncs + log.uploads
    return {f"{place} ({kind})": count for (kind, place), count in sorted(both.items(), key=lambda one: one[0][::-1])}


def _write() -> None:
    torch.set_num_threads(1)
    lines = ["# Where an epoch of each case waits for the device, and how often: python -m tests.support.device_cases"]
    for name in (*CASES, PACK):
        with virtual_cuda() as log:
            _ = train_pack(log) if name == PACK else train(CASES[name], log)
        lines += ["", f"[{name}]", *(f'"{place}" = {count}' for place, count in counted(log).items())]
    SYNCS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    _write()
