"""The parts and their rows, the most valuable first. Imports no workload."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

from benchmarks.gpu_day import measures, sentences
from benchmarks.gpu_day.inputs import ENCODER, IMAGES
from benchmarks.gpu_day.session import Row

PYDANTIC = ("pydantic", "pydantic_core", "annotated_types", "typing_inspection")
SIMCLR = (*PYDANTIC, "torchvision", "PIL", "pyarrow")
TEXT = (*PYDANTIC, "transformers", "tokenizers", "safetensors", "pandas", "pyarrow")
RANKING = (*TEXT, "bm25s", "Stemmer")

WORKLOADS = {
    "recommender": ("workloads.recommender.workload:Recommender", PYDANTIC),
    "simclr": ("workloads.simclr.workload:SimCLR", SIMCLR),
    "bi-encoder": ("workloads.bi_encoder.workload:BiEncoder", TEXT),
    "text ranker": ("workloads.text_ranker.workload:TextRanker", RANKING),
    "vera": ("workloads.vera.workload:Vera", TEXT),
    "lifelong": ("workloads.lifelong.workload:Lifelong", RANKING),
}

BF16 = {"precision": "bf16"}


def _row(name: str, run: Callable[..., Any], workload: str, params: Any, runtime: Any, **further: Any) -> Row:
    path, needs = WORKLOADS[workload]
    return Row(name, run, path, params, runtime, **{"needs": needs, **further})


def tests(dry: bool) -> Iterator[Row]:
    yield Row("pytest -m gpu", measures.tests, needs=("pytest", "scipy", *RANKING, "torchvision", "PIL"), seconds=300)


def steps(dry: bool) -> Iterator[Row]:
    large = {"dataset": "synthetic" if dry else "synthetic-1m", "dim": 64, "batch_size": 2048 if dry else 2**15}
    text = {"encoder": ENCODER, "max_length": 16 if dry else 128}
    images = {"dataset": IMAGES, "encoder": "tiny" if dry else "resnet18", "batch_size": 8 if dry else 256}
    graph = {**large, "backbone": "lightgcn"}
    cases: list[tuple[str, str, Mapping[str, Any], Mapping[str, Any]]] = [
        ("mf", "recommender", large, {}),
        ("simclr", "simclr", images, BF16),
        ("bi-encoder", "bi-encoder", {**text, "batch_size": 4 if dry else 64}, BF16),
        ("lightgcn", "recommender", graph, {}),
        ("text ranker", "text ranker", {**text, "batch_size": 2 if dry else 16}, BF16),
        ("lifelong", "lifelong", {**text, "batch_size": 4 if dry else 32}, BF16),
        ("vera", "vera", {"hidden": 8, "max_length": 16} if dry else {}, {}),
        ("lightgcn bf16", "recommender", graph, BF16),
    ]
    for name, workload, params, runtime in cases:
        yield _row(name, measures.step, workload, params, {**runtime, "steps_per_epoch": 1 if dry else 20})


def packs(dry: bool) -> Iterator[Row]:
    for backbone, members in product(("mf", "lightgcn"), (1, 2) if dry else (1, 8, 32, 256)):
        params = {"backbone": backbone, "dim": 32, "batch_size": 16384 if dry else 2048}
        together = "alone" if members == 1 else f"{members} together"
        yield _row(f"{backbone}, {together}", measures.pack, "recommender", params, {}, options={"members": members})


def images(dry: bool) -> Iterator[Row]:
    """SimCLR's step by encoder, batch, arithmetic, layout and compilation."""
    options: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
        "bf16 compiled": ({"compile": True}, BF16),
        "bf16": ({"compile": False}, BF16),
        "tf32": ({"compile": False}, {"precision": "tf32"}),
        "fp32": ({"compile": False}, {}),
        "bf16 channels first": ({"compile": False, "channels_last": False}, BF16),
    }
    first, further = list(options)[:2], list(options)[2:]
    sizes = [(encoder, batch) for batch in (256, 1024, 4096) for encoder in ("resnet18", "resnet50")]
    small, large = (sizes[:4], sizes[4:])
    order = [*product(small, first), *product(small[:2], further), *product(large, first), *product(sizes[2:], further)]
    if dry:
        order = list(product([("tiny", 8)], options))
    for (encoder, batch), name in order:
        params, runtime = options[name]
        yield _row(
            f"{encoder}, {batch}, {name}", measures.step, "simclr",
            {"dataset": IMAGES, "encoder": encoder, "batch_size": batch, **params},
            {**runtime, "steps_per_epoch": 1 if dry else 10}, seconds=180,
        )  # fmt: skip


def texts(dry: bool) -> Iterator[Row]:
    """The bi-encoder next to sentence-transformers."""
    systems = {"ours": TEXT, "sentence-transformers": (*TEXT, "sentence_transformers")}
    params = sentences.params(batch_size=4 if dry else 64)
    for precision, system in product(("bf16", "fp32"), systems):
        options = {"system": system, "sentences": 20 if dry else 20_000}
        for name, run in (("encode", sentences.encode), ("train", sentences.train)):
            yield _row(
                f"{name}, {system}, {precision}", run, "bi-encoder", params,
                {"precision": precision, "steps_per_epoch": 1 if dry else 20}, options=options, needs=systems[system],
            )  # fmt: skip


def quality(loss: str) -> Callable[[bool], Iterator[Row]]:
    """A part that trains SimCLR with one loss for a hundred epochs."""

    def rows(dry: bool) -> Iterator[Row]:
        params = {"encoder": "tiny", "dataset_size": 8, "batch_size": 64} if dry else {"encoder": "resnet18"}
        yield _row(
            f"simclr {loss}", measures.quality, "simclr", {"dataset": IMAGES, "loss": loss, **params},
            {**BF16, "epochs": 1 if dry else 100}, seconds=470,
        )  # fmt: skip

    return rows


PARTS: dict[str, Callable[[bool], Iterator[Row]]] = {
    "1": tests, "2": steps, "3": packs, "4": images, "5": texts,
    "6": quality("infonce"), "7": quality("dcl"), "8": quality("hcl"), "9": quality("bcl"),
}  # fmt: skip
