"""Configurations trained on the virtual device, and the places where they synchronise.

``python -m tests.support.device_cases`` writes ``syncs.toml`` next to the test that compares it. It refuses a list that
grows, unless ``--grow`` is given.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from tests.support.small_data import small_pairs
from tests.support.small_vera import SMALL as SMALL_VERA
from tests.support.virtual_device import CUDA, ROOT, Log, virtual_cuda
from tests.unit.workloads.lifelong.test_conformance import SMALL as SMALL_LIFELONG
from tests.unit.workloads.simclr.test_conformance import TINY, OfFewImages
from tests.unit.workloads.text_ranker.test_workload import SMALL as SMALL_RANKER
from tests.unit.workloads.vera.test_workload import TestPlateauOverDocuments
from workloads.bi_encoder.workload import BiEncoder
from workloads.contract import Runtime
from workloads.lifelong.workload import Lifelong
from workloads.recommender import dataset, shared
from workloads.recommender.adam import Adam, StackedAdam
from workloads.recommender.sgd import BatchedSGD
from workloads.recommender.workload import Recommender
from workloads.sampling import negatives, pairs
from workloads.text_ranker.workload import TextRanker
from workloads.vera.workload import Vera

SYNCS = ROOT / "tests" / "unit" / "workloads" / "syncs.toml"
PACK = "mf-pack"
"""Name of :func:`train_pack` in the file."""
SMALL_BI_ENCODER = {"dataset": small_pairs(), "batch_size": 80}
RUNTIME = Runtime(device=CUDA, data=Path(), seed=7, epochs=3)


@dataclass(frozen=True)
class Case:
    """A workload, its parameters, and changes to :data:`RUNTIME`."""

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
    """SimCLR with images on the host: a thread gathers the next batch while one is used."""

    def __init__(self, params: Any, runtime: Runtime) -> None:
        super().__init__(params, runtime)
        parts = {name: getattr(self.data, name) for name in ("train", "validation", "test")}
        on_host = {name: replace(part, images=part.images.cpu()) for name, part in parts.items()}
        self.data = replace(self.data, **on_host)


class OfLargeData(Recommender):
    """Users x items are too many for lists of what is unobserved."""

    def __init__(self, params: Any, runtime: Runtime) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(negatives, "LISTED", 0)
            patch.setattr(pairs, "LISTED", 0)
            patch.setattr(shared, "prepare", dataset.divide)  # not the prepared data of other cases
            super().__init__(params, runtime)


CASES: Mapping[str, Case] = {
    "mf": _recommender(quality=True),
    "mf-steps": _recommender({"log_every": 2, "accumulate": 2}),
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
    "srns-1": _recommender(sampler="srns", candidates=8, srns_warmup=1),
    "truncated-bpr": _recommender(loss="denoise_truncated_bpr"),
    "reweighted": _recommender(loss="denoise_reweighted"),
    "decoupled": _recommender(loss="decoupled", negatives=4),
    "bprac-bayes": _recommender(loss="bprac", credence="bayes", backbone="lightgcn"),
    "sgl": _recommender(backbone="lightgcn", contrast="sgl", augmentation="random_walk", layers=2),
    "sgl-nodes": _recommender({"accumulate": 2}, backbone="lightgcn", contrast="sgl", augmentation="node_drop"),
    "simgcl-bf16": _recommender({"precision": "bf16"}, backbone="lightgcn", contrast="simgcl", loss="bcl", negatives=4),
    "lightgcl": _recommender(backbone="lightgcn", contrast="lightgcl", layers=2),
    "ncl": _recommender(backbone="lightgcn", contrast="ncl", clusters=8, prototype_warmup=0),
    "large": Case(OfLargeData, {"dim": 8, "batch_size": 4096}),
    "large-dns": Case(OfLargeData, {"dim": 8, "batch_size": 4096, "sampler": "dns", "candidates": 3}),
    "sgd-batched": _recommender(optimizer="sgd_batched", batch_size=1024, weight_decay=0.01, dataset_noise=0.1),
    "simclr-bcl-lars": _simclr(
        {"accumulate": 2}, loss="bcl", optimizer="lars", lr=0.005, warmup=0.5, alpha="auc", eval_probe="never"
    ),
    "simclr-infonce": _simclr(eval_probe="never"),
    "simclr-hcl-blur": _simclr(loss="hcl", blur=0.5, eval_probe="always"),
    "simclr-on-host": Case(OfImagesOnHost, {**TINY, "loss": "hcl"}, {"steps_per_epoch": 2}),
    "simclr-resnet-bf16": _simclr(
        {"precision": "bf16", "steps_per_epoch": 2}, encoder="resnet18", optimizer="sgd", eval_probe="never"
    ),
    "simclr-moco-supervised": _simclr(method="moco", queue=48, loss="supervised", eval_probe="never"),
    "simclr-byol": _simclr({"accumulate": 2}, method="byol", predictor=8, eval_probe="never"),
    "simclr-protonce": _simclr(
        method="protonce", queue=48, clusters=4, granularities=2, prototype_warmup=0.0, eval_probe="never"
    ),
    "bi-encoder": Case(BiEncoder, SMALL_BI_ENCODER),
    "bi-encoder-steps": Case(BiEncoder, SMALL_BI_ENCODER, {"log_every": 2}),
    "bi-encoder-bcl-max": Case(
        BiEncoder, {**SMALL_BI_ENCODER, "loss": "bcl", "pooling": "max"}, {"precision": "bf16", "accumulate": 2}
    ),
    "bi-encoder-cross": Case(BiEncoder, {**SMALL_BI_ENCODER, "scoring": "cross"}),
    "bi-encoder-cosent-cls": Case(BiEncoder, {**SMALL_BI_ENCODER, "loss": "cosent", "pooling": "cls"}),
    "bi-encoder-cosine-embedding": Case(BiEncoder, {**SMALL_BI_ENCODER, "loss": "cosine_embedding"}),
    "ranker-cross": Case(TextRanker, SMALL_RANKER),
    "ranker-passages": Case(
        TextRanker,
        {
            **SMALL_RANKER,
            "long_documents": "best_passage",
            "passage_words": 6,
            "passage_stride": 4,
            "passages": 3,
        },
    ),
    "ranker-bi-margin": Case(
        TextRanker,
        {**SMALL_RANKER, "scoring": "bi", "loss": "adaptive_margin", "learnable": True, "positives": 2, "hard": 0.5},
    ),
    "vera": Case(Vera, SMALL_VERA),
    "vera-steps": Case(Vera, SMALL_VERA, {"log_every": 2}),
    "vera-dropout": Case(
        Vera,
        {**SMALL_VERA, "method": "softmax", "confidence": "mc_dropout", "dropout": 0.5, "stage_share": None},
        {"epochs": 2},
    ),
    "vera-documents": Case(Vera, TestPlateauOverDocuments.params),
    "vera-messages": Case(Vera, {**SMALL_VERA, "graph_layers": 1, "evidence_map": "softplus"}),
    "vera-encoder": Case(Vera, {**SMALL_VERA, "encoder_lr": 1e-3}),
    "vera-edl": Case(Vera, {**SMALL_VERA, "method": "edl", "stage_share": None}),
    "vera-isotonic": Case(Vera, {**SMALL_VERA, "method": "softmax", "recalibration": "isotonic", "stage_share": None}),
    "vera-group": Case(Vera, {**SMALL_VERA, "query_target": "group", "groups": "type"}),
    "lifelong": Case(Lifelong, SMALL_LIFELONG),
    "lifelong-apart": Case(Lifelong, {**SMALL_LIFELONG, "encoders": "apart"}),
    "lifelong-steps": Case(Lifelong, SMALL_LIFELONG, {"log_every": 2}),
    "lifelong-ocs": Case(Lifelong, {**SMALL_LIFELONG, "memory": "ocs", "compatible": "no", "new": "random"}),
    "lifelong-frozen": Case(
        Lifelong, {**SMALL_LIFELONG, "memory": "random", "compatible": "frozen"}, {"precision": "bf16"}
    ),
    "lifelong-mir": Case(Lifelong, {**SMALL_LIFELONG, "memory": "mir"}),
    "lifelong-gss": Case(Lifelong, {**SMALL_LIFELONG, "memory": "gss"}),
    "lifelong-er-embedding": Case(Lifelong, {**SMALL_LIFELONG, "memory": "random", "compatible": "embedding"}),
    "lifelong-retrain": Case(
        Lifelong,
        {name: value for name, value in SMALL_LIFELONG.items() if name not in ("n_memory", "capacity")}
        | {"update": "retrain"},
    ),
}


def train(case: Case, log: Log) -> tuple[Any, Waits]:
    """Train two epochs, and count in the second one alone."""
    built = case.build()
    built.train_epoch(1)
    with _counting(log) as counted:
        built.train_epoch(2)
    return built, counted[0]


def train_pack(log: Log) -> tuple[Any, list[Any], Waits]:
    """Train a pack of three for two epochs and return it with its members; count in the second epoch alone."""
    members = [_recommender({"seed": seed}, lr=0.005 * seed, weight_decay=1e-4 * seed).build() for seed in range(1, 4)]
    pack = Recommender.pack(members)
    pack.train_epoch([1] * 3)
    with _counting(log) as counted:
        pack.train_epoch([2] * 3)
    return pack, members, counted[0]


@dataclass(frozen=True)
class Waits:
    """Times that the host or the device waits, by ``file:function (kind)``, and copies from the host.

    ``step``: in a step, from one update of the weights to the next; the most of all steps. ``epoch``: in the rest of
    the epoch. ``copies``: in a step, whether something waits for them or not.
    """

    step: Mapping[str, int]
    epoch: Mapping[str, int]
    copies: int
    lines: Mapping[str, set[int]] = field(default_factory=dict, compare=False)

    def more_than(self, listed: Waits) -> list[str]:
        """What is more than listed, with the lines where it is."""
        more = [
            f"{key.partition(' ')[0]} line {sorted(self.lines.get(key.partition(' ')[0], ()))}: "
            f"{count} times {key.partition(' ')[2]} in {part}, listed are {getattr(listed, part).get(key, 0)}"
            for part in ("step", "epoch")
            for key, count in getattr(self, part).items()
            if count > getattr(listed, part).get(key, 0)
        ]
        if self.copies > listed.copies:
            more.append(f"{self.copies} copies in a step, listed are {listed.copies}")
        return more


def listed_waits() -> dict[str, Waits]:
    """The file, by case."""
    listed = tomllib.loads(SYNCS.read_text()) if SYNCS.exists() else {}
    return {name: Waits(case.get("step", {}), case.get("epoch", {}), case["copies"]) for name, case in listed.items()}


@contextmanager
def _counting(log: Log) -> Iterator[list[Waits]]:
    """Count within the block; the list then has what was counted."""
    counted: list[Waits] = []
    marks: list[tuple[Counter[str], int]] = []

    def mark(*_: Any) -> None:
        marks.append((_by_place(log), sum(log.copies.values())))

    def marked(update: Any) -> Any:
        def call(*args: Any) -> None:
            update(*args)
            mark()

        return call

    log.clear()
    hook = register_optimizer_step_post_hook(mark)
    with pytest.MonkeyPatch.context() as patch:
        for optimizer in (Adam, StackedAdam, BatchedSGD):
            patch.setattr(optimizer, "update", marked(optimizer.update))
        mark()
        yield counted
        mark()
    hook.remove()
    (before, _), (first, _) = marks[:2]
    (last, _), (end, _) = marks[-2:]
    steps = [(after - start, more - less) for (start, less), (after, more) in pairwise(marks[1:-1])]
    step: Counter[str] = Counter()
    for waits, _ in steps:
        step |= waits
    epoch = (first - before) + (end - last) - step
    counted.append(Waits(step, epoch, max(copies for _, copies in steps), log.lines))


def _by_place(log: Log) -> Counter[str]:
    return Counter({f"{place} ({kind})": count for (kind, place), count in (log.syncs + log.uploads).items()})


def measured(name: str) -> Waits:
    """Train a case on a virtual device."""
    with virtual_cuda() as log:
        return train_pack(log)[-1] if name == PACK else train(CASES[name], log)[-1]


def grown(before: Mapping[str, Waits], now: Mapping[str, Waits]) -> list[str]:
    """What is more than before. Of a case that was not listed only what is in a step counts."""
    return [
        f"{name}: {more}"
        for name, waits in now.items()
        for more in waits.more_than(before.get(name, Waits({}, waits.epoch, waits.copies)))
    ]


def write(now: Mapping[str, Waits], grow: bool = False) -> None:
    """Write the file. Exits with what has grown, unless ``grow`` is True."""
    if (more := grown(listed_waits(), now)) and not grow:
        raise SystemExit("\n".join([*more, "More than listed: keep the values on the device, or give --grow."]))
    lines = [
        "# Where each case waits for the device in a step and in the rest of an epoch, and copies from the host in"
    ]
    lines += ["# a step: python -m tests.support.device_cases"]
    for name, waits in now.items():
        lines += ["", f"[{name}]", f"copies = {waits.copies}"]
        for part in ("step", "epoch"):
            counts = sorted(getattr(waits, part).items())
            lines += [f"[{name}.{part}]"] * bool(counts) + [f'"{key}" = {count}' for key, count in counts]
    SYNCS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    write({name: measured(name) for name in (*CASES, PACK)}, grow="--grow" in sys.argv[1:])
