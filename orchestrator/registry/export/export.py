"""Export a registered version to a folder in the format of another tool, with a model card.

Only data of the version is read: its weights and configuration. Code of the model runs for ``--input`` alone, to embed.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import UNAVAILABLE, UserError, unknown
from orchestrator.provenance import record as provenance
from orchestrator.registry import versions
from orchestrator.registry.export import model_card
from orchestrator.registry.export.model import Model
from orchestrator.storage import disk
from orchestrator.storage.names import OUTCOME, TEST_UNITS
from orchestrator.storage.settings import Settings
from workloads.named_function import load_function

TEXT = ("bi_encoder", "lifelong", "text_ranker")


@dataclass(frozen=True, slots=True)
class Format:
    """A format: ``module:function`` of its writer, the packages it needs and their extra, the workloads it takes.

    ``embeds`` says whether it holds vectors, of the rows of ``--input`` where given.
    """

    function: str
    packages: tuple[str, ...]
    extra: str
    workloads: tuple[str, ...]
    about: str
    embeds: bool = False


_HERE = "orchestrator.registry.export"
_VECTORS = ("recommender", "lifelong", "bi_encoder", "simclr")
FORMATS = {
    "sentence-transformers": Format(
        f"{_HERE}.text:sentence_transformers", ("sentence_transformers",), "export", TEXT,
        "SentenceTransformer, or CrossEncoder of a ranker with scoring=cross",
    ),
    "transformers": Format(
        f"{_HERE}.text:transformers", ("transformers",), "train", TEXT, "AutoModel and AutoTokenizer, in safetensors"
    ),
    "onnx": Format(
        f"{_HERE}.onnx_file:onnx", ("onnx", "onnxscript", "onnxruntime"), "onnx", (*TEXT, "simclr"),
        "model.onnx, compared with the model by onnxruntime",
    ),
    "embeddings": Format(
        f"{_HERE}.vectors:embeddings", ("pyarrow",), "train", _VECTORS, "Parquet of ids and vectors", embeds=True,
    ),
    "faiss": Format(
        f"{_HERE}.vectors:faiss", ("faiss",), "faiss", _VECTORS, "exact and HNSW index, with recall@10",
        embeds=True,
    ),
}  # fmt: skip


def export(settings: Settings, reference: str, target: Path, form: str, rows: str | None = None) -> str:
    """Export the version ``reference`` to the folder ``target``. Returns a sentence.

    ``rows`` is a file whose rows an encoder embeds. Raises UserError for a folder that is not empty, a format that
    does not take the model's workload, missing packages, and what cannot be converted.
    """
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    chosen = FORMATS[form]
    if rows is not None and not chosen.embeds:
        embedding = " or ".join(name for name, each in FORMATS.items() if each.embeds)
        raise UserError(f"The format {form} takes no rows", got=f"--input {rows}", allowed=f"with {embedding}")
    disk.check_empty(target)
    target = target.resolve()  # . has no name, and a link is no folder
    if not target.parent.is_dir():
        raise UserError(f"The folder {target.parent} does not exist", fix="Create it, or correct the path")
    version = versions.find(settings, reference)
    version.check_workload(chosen.workloads, f"cannot be exported as {form}")
    if missing := [name for name in chosen.packages if importlib.util.find_spec(name) is None]:
        verb = "is" if len(missing) == 1 else "are"
        raise UserError(
            f"The format {form} needs {', '.join(missing)}, which {verb} not installed here",
            fix=f"Install ray-experiment-orchestrator[{chosen.extra}]", code=UNAVAILABLE,
        )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="export-") as scratch, disk.writing(target, "to"):
        files = Path(scratch) / "model"
        files.mkdir()
        versions.download(settings, version, files)
        record = Path(scratch) / "record"
        record.mkdir()
        spec = versions.record_json(settings, version, provenance.SPEC, record)
        outcome = versions.record_json(settings, version, OUTCOME, record)
        units = versions.record_file(settings, version, TEST_UNITS, record)
        model = Model(version, files, settings, rows, spec.get("params", {}))
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            written = load_function(chosen.function)(model, partial)
            card = model_card.text(version, form, written, spec, outcome, units)
            (partial / "README.md").write_text(card, "utf-8")
            if not target.exists():
                partial.rename(target)
            else:  # it may be a working directory or a mounted volume
                for file in partial.iterdir():
                    shutil.move(file, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return "; ".join([f"{version.name} is exported as {form}: {target}", *written.notes])
