"""What a GPU is asked in its first hour: parts of at most eight minutes, each of which leaves a JSON file.

    python -m benchmarks.gpu_day --part 2 --out DIR

It needs Python, PyTorch, torchvision, transformers, pydantic and bm25s, but not Ray, MLflow or Optuna. Texts and
interactions are generated; images are CIFAR-10's where ORCHESTRATOR_DATA has them. ``--dry`` runs the smallest sizes
on the tests' virtual device, to try the program where there is no GPU. Only one GPU is used: NCCL is not run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("torch", "torchvision", "transformers", "pydantic", "tokenizers", "safetensors", "pyarrow", "bm25s")
PEAKS = {
    "H200": {"fp32": 67e12, "tf32": 494e12, "bf16": 989e12, "bytes": 4.8e12},
    "H100": {"fp32": 67e12, "tf32": 494e12, "bf16": 989e12, "bytes": 3.35e12},
    "A100": {"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12, "bytes": 2.0e12},
}
"""Dense operations and bytes a second by the vendor's data sheets."""

LIMIT_SECONDS = 450.0
"""Time after which a part begins nothing more."""

Row = dict[str, Any]


class Day:
    """The device, the sizes, and the file to which the rows of a part are written one by one."""

    def __init__(self, part: str, out: Path, dry: bool) -> None:
        import torch

        self.dry = dry
        self.device = torch.device("cuda", 0)
        self._file = out / f"gpu-day-{part}.json"
        self._started = time.monotonic()
        name = "virtual" if dry else torch.cuda.get_device_name(0)
        self.peaks = next((peaks for known, peaks in PEAKS.items() if known in name), {})
        self._record: Row = {
            "part": part, "device": name, "python": platform.python_version(), "torch": torch.__version__,
            "commit": commit(), "not_run": "NCCL: one GPU", "rows": [],
        }  # fmt: skip
        out.mkdir(parents=True, exist_ok=True)
        self.write()

    def measure(self, name: str, row: Callable[[], Row]) -> None:
        """Add a row; one that fails says why, one for which there is no time is left out."""
        if time.monotonic() - self._started > LIMIT_SECONDS:
            found: Row = {"left_out": "no time"}
        else:
            try:
                found = row()
            except Exception as error:
                found = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        self._record["rows"].append({"name": name, **found})
        print(json.dumps(self._record["rows"][-1]), flush=True)
        self.write()

    def write(self) -> None:
        self._record["seconds"] = round(time.monotonic() - self._started, 1)
        self._file.write_text(json.dumps(self._record, indent=1) + "\n")

    def size(self, value: int, dry: int) -> int:
        return dry if self.dry else value


def commit() -> str:
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def synchronise() -> None:
    import torch

    torch.cuda.synchronize()


def step_row(day: Day, workload: type[Any], params: Row, steps: int, **runtime: Any) -> Row:
    """Time, arithmetic, memory, kernels and waits of a training step of a workload alone."""
    import torch
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.flop_counter import FlopCounterMode

    from workloads.contract import Runtime
    from workloads.precision import training_precision

    base = Runtime(device=day.device, data=data(), seed=1, epochs=8, steps_per_epoch=steps)
    base = replace(base, **runtime)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    built = workload(workload.Params(**params), base)
    with training_precision(base.precision):
        built.train_epoch(1)
        synchronise()
        started = time.perf_counter()
        built.train_epoch(2)
        synchronise()
        seconds = (time.perf_counter() - started) / steps
        with FlopCounterMode(display=False) as counter:
            built.train_epoch(3)
        row: Row = {
            "step_ms": seconds * 1e3, "flops": counter.get_total_flops() / steps,
            "memory_gib": torch.cuda.max_memory_allocated() / 2**30,
        }  # fmt: skip
        if not day.dry:
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
                built.train_epoch(4)
                synchronise()
            events = list(profiler.events())
            row["kernels"] = sum(event.device_type.name == "CUDA" for event in events) / steps
            row["waits"] = sum("Synchronize" in event.name for event in events) / steps
    if day.peaks:
        row["share_of_peak"] = row["flops"] / seconds / day.peaks[base.precision]
    if "batch_size" in params:
        row["rows_per_second"] = params["batch_size"] / seconds
    return row


def data() -> Path:
    return Path(os.environ.get("ORCHESTRATOR_DATA", "."))


def tests(day: Day) -> None:
    """The tests of the workloads that need a GPU."""

    def run() -> Row:
        files = sorted((ROOT / "tests" / "unit" / "workloads").rglob("test_*.py"))
        marked = [str(file) for file in files if "mark.gpu" in file.read_text()]
        # Without the project's configuration and fixtures, which need plugins and MLflow.
        plain = ["-c", os.devnull, "--rootdir", str(ROOT), "--noconftest", "-p", "no:cacheprovider"]
        command = [sys.executable, "-m", "pytest", *plain, "-q", "-m", "gpu", *marked]
        if day.dry:
            command += ["--collect-only"]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        return {"exit": done.returncode, "output": done.stdout.splitlines()[-40:]}

    day.measure("pytest -m gpu", run)


def steps(day: Day) -> None:
    """Each workload's step alone."""
    from workloads.bi_encoder.workload import BiEncoder
    from workloads.lifelong.workload import Lifelong
    from workloads.recommender.workload import Recommender
    from workloads.simclr.workload import SimCLR
    from workloads.text_ranker.workload import TextRanker
    from workloads.vera.workload import Vera

    large = {"dataset": "synthetic" if day.dry else "synthetic-1m", "dim": 64, "batch_size": day.size(2**15, 2048)}
    with encoder_folder(day) as encoder:
        text = {"encoder": encoder, "max_length": day.size(128, 16)}
        small = {"batch_size": day.size(64, 4)}
        images = {"dataset_size": 32, "encoder": "tiny" if day.dry else "resnet18", "batch_size": day.size(256, 8)}
        cases: list[tuple[str, type[Any], Row, Row]] = [
            ("mf", Recommender, large, {}),
            ("lightgcn", Recommender, {**large, "backbone": "lightgcn"}, {}),
            ("lightgcn bf16", Recommender, {**large, "backbone": "lightgcn"}, {"precision": "bf16"}),
            ("simclr", SimCLR, images, {"precision": "bf16"}),
            ("bi-encoder", BiEncoder, {**text, **small}, {"precision": "bf16"}),
            ("text ranker", TextRanker, {**text, "batch_size": day.size(16, 2)}, {"precision": "bf16"}),
            ("vera", Vera, {}, {}),
            ("lifelong", Lifelong, {**text, "batch_size": day.size(32, 4)}, {"precision": "bf16"}),
        ]
        for name, workload, params, runtime in cases:
            day.measure(name, lambda w=workload, p=params, r=runtime: step_row(day, w, p, day.size(20, 1), **r))


def packs(day: Day) -> None:
    """Matrix factorisations trained together: seconds of an epoch of one trial, by the number of members."""
    from workloads.contract import Runtime
    from workloads.recommender.workload import Recommender

    base = Runtime(device=day.device, data=data(), seed=1, epochs=3)

    def together(members: int, backbone: str) -> Row:
        params = Recommender.Params(backbone=backbone, dim=32, batch_size=2048)
        built = [Recommender(params, replace(base, seed=seed)) for seed in range(members)]
        pack = Recommender.pack(built) if members > 1 else None
        seconds = []
        for epoch in (1, 2, 3):
            synchronise()
            started = time.perf_counter()
            pack.train_epoch([epoch] * members) if pack else built[0].train_epoch(epoch)
            synchronise()
            seconds.append((time.perf_counter() - started) / members)
        return {"epoch_seconds_per_trial": min(seconds[1:])}

    for members in (1, 2) if day.dry else (1, 8, 32, 256):
        day.measure(f"mf, {members} together", lambda members=members: together(members, "mf"))
    day.measure("lightgcn, alone", lambda: together(1, "lightgcn"))


def images(day: Day) -> None:
    """SimCLR's step by encoder, batch, arithmetic, layout and compilation."""
    from workloads.simclr.workload import SimCLR

    options: list[tuple[str, Row, Row]] = [
        ("fp32", {"compile": False}, {}),
        ("tf32", {"compile": False}, {"precision": "tf32"}),
        ("bf16", {"compile": False}, {"precision": "bf16"}),
        ("bf16 compiled", {"compile": True}, {"precision": "bf16"}),
        ("bf16 channels first", {"compile": False, "channels_last": False}, {"precision": "bf16"}),
    ]
    for batch in (8,) if day.dry else (256, 1024, 4096):
        for encoder in ("tiny",) if day.dry else ("resnet18", "resnet50"):
            for name, params, runtime in options:
                own = {"dataset_size": 32, "encoder": encoder, "batch_size": batch, **params}
                day.measure(
                    f"{encoder}, {batch}, {name}",
                    lambda own=own, runtime=runtime: step_row(day, SimCLR, own, day.size(10, 1), **runtime),
                )


def sentences(day: Day) -> None:
    """Sentences a second of the bi-encoder and of sentence-transformers, with the same BERT-base from scratch."""
    import torch

    from workloads.encoders.text import encode, load_encoder

    texts = generated_sentences(day.size(20_000, 20))

    def rate(run: Callable[[], object]) -> Row:
        run()
        synchronise()
        started = time.perf_counter()
        run()
        synchronise()
        return {"sentences_per_second": len(texts) / (time.perf_counter() - started)}

    with encoder_folder(day) as folder:
        for precision in ("fp32", "bf16"):
            tokenizer, encoder = load_encoder(folder, max_length=64, precision=precision)
            encoder.to(day.device)
            tokens = tokenizer(texts)
            day.measure(f"ours, {precision}", lambda e=encoder, t=tokens: rate(lambda: encode(e, t)))
            if day.dry:
                continue
            missing("sentence_transformers")
            from sentence_transformers import SentenceTransformer, models

            words = models.Transformer(folder, max_seq_length=64)
            theirs = SentenceTransformer(modules=[words, models.Pooling(words.get_word_embedding_dimension())])
            cast = torch.autocast("cuda", torch.bfloat16) if precision == "bf16" else nullcontext()
            with cast:
                day.measure(
                    f"sentence-transformers, {precision}",
                    lambda model=theirs: rate(lambda: model.encode(texts, batch_size=256, convert_to_tensor=True)),
                )


def quality(loss: str) -> Callable[[Day], None]:
    """A part that trains SimCLR with one loss for a hundred epochs of CIFAR-10, as far as it is there."""

    def part(day: Day) -> None:
        """Validation by epoch, and test at the end, once."""
        from orchestrator.config.plan import Plan
        from orchestrator.engine.loop import run_epochs
        from workloads.contract import Runtime
        from workloads.simclr.workload import SimCLR

        real = (data() / "cifar10").is_dir() and not day.dry
        params = {"dataset": "cifar-10" if real else "synthetic-images", "loss": loss}
        params |= {"encoder": "tiny", "dataset_size": 8, "batch_size": 64} if day.dry else {"encoder": "resnet18"}
        epochs = day.size(100, 1)
        runtime = Runtime(device=day.device, data=data(), seed=1, epochs=epochs, precision="bf16")

        def train() -> Row:
            workload = SimCLR(SimCLR.Params(**params), runtime)
            plan = Plan(epochs=epochs, evaluate_every=max(1, epochs // 10), precision="bf16", refit=False)
            curve, ended = {}, None
            until = time.monotonic() + LIMIT_SECONDS
            for report in run_epochs(workload, plan, stop=lambda: time.monotonic() > until):
                curve |= {row.epoch: row.metrics.get("validation/knn_top1") for row in report.rows}
                ended = report.ended
            test = dict(workload.evaluate("test").metrics) if ended else None
            return {"params": params, "validation_knn_top1": {k: v for k, v in curve.items() if v}, "test": test}

        day.measure(f"simclr {loss}", train)

    return part


def encoder_folder(day: Day) -> Any:
    """Context manager: a folder with a BERT-base, tiny in a dry run, from scratch, whose tokens are letters."""
    return _EncoderFolder(day.dry)


class _EncoderFolder:
    def __init__(self, small: bool) -> None:
        self._small = small
        self._folder = tempfile.TemporaryDirectory()

    def __enter__(self) -> str:
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
        from transformers import BertConfig, BertModel

        letters = [chr(code) for code in range(33, 127)]
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
        tokenizer = Tokenizer(models.WordPiece({word: row for row, word in enumerate(words)}, unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        config = BertConfig(vocab_size=len(words), **(shape if self._small else {}))
        BertModel(config).save_pretrained(self._folder.name)
        tokenizer.save(f"{self._folder.name}/tokenizer.json")
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "unk_token": "[UNK]"}
        Path(self._folder.name, "tokenizer_config.json").write_text(json.dumps(settings))
        return self._folder.name

    def __exit__(self, *error: object) -> None:
        self._folder.cleanup()


def generated_sentences(count: int) -> list[str]:
    """Sentences of 8 to 40 letters, the same each time."""
    return [" ".join(chr(97 + (7 * row + 3 * place) % 26) for place in range(4 + row % 17)) for row in range(count)]


PARTS: dict[str, Callable[[Day], None]] = {
    "1": tests, "2": steps, "3": packs, "4": images, "5": sentences,
    "6": quality("infonce"), "7": quality("dcl"), "8": quality("hcl"), "9": quality("bcl"),
}  # fmt: skip


def missing(*packages: str) -> None:
    """End with the name of a package that is not installed."""
    if absent := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise SystemExit(f"Missing: {', '.join(absent)}. Install or carry the wheels")


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dry", action="store_true", help="smallest sizes on the virtual device")
    asked = parser.parse_args(words)
    missing(*NEEDED)
    for context in _device(asked.dry):
        with context:
            PARTS[asked.part](Day(asked.part, asked.out, asked.dry))


def _device(dry: bool) -> Iterator[Any]:
    import torch

    if dry:
        import torchvision  # noqa: F401  # keeps references to functions of torch
        import transformers  # noqa: F401

        from tests.support.virtual_device import virtual_cuda

        yield virtual_cuda()
    elif torch.cuda.is_available():
        yield nullcontext()
    else:
        raise SystemExit("There is no CUDA device. --dry tries the program without one")


if __name__ == "__main__":
    main()
