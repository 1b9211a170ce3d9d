"""The benchmark session for a GPU machine, run without a GPU: rows, deadline, results file, and dry run."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu_day import inputs as inputs_module
from benchmarks.gpu_day import measures, session
from benchmarks.gpu_day.__main__ import main
from benchmarks.gpu_day.inputs import CIFAR, Inputs, write_encoder
from benchmarks.gpu_day.plan import PARTS
from benchmarks.gpu_day.session import Result, Row, Session, time_limit
from benchmarks.gpu_day.traffic import propagation_bytes, step_bytes
from tests.support.virtual_device import virtual_cuda
from tests.unit.workloads import test_gpu
from workloads.checks import check_batch
from workloads.contract import Runtime
from workloads.recommender.workload import Recommender

CPU = torch.device("cpu")

# Modules that are not found, as on a machine without them, instead of raising an error on import.
ABSENT = """
import sys
ABSENT = ("ray", "mlflow", "optuna", "numba", "hypothesis", "xdist", "pytest_timeout", "sentence_transformers")
class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in ABSENT else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


@pytest.fixture
def without_packages(tmp_path: Path) -> dict[str, str]:
    """Environment of a process in which the packages of :data:`ABSENT` are not installed."""
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / "sitecustomize.py").write_text(ABSENT)
    paths = [str(tmp_path / "absent"), str(measures.ROOT)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def on_h100(out: Path, monkeypatch: pytest.MonkeyPatch, commit: str = "0123456789ab", minutes: float = 600) -> Session:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA H100 80GB HBM3")
    return Session(out, commit, minutes, Inputs())


def rows_of(built: Session) -> list[Result]:
    rows: list[Result] = json.loads(built.file.read_text())["rows"]
    return rows


# Rows


def check_rows(given: Inputs, encoder: Path) -> int:
    """Construct the parameters of every row as on a GPU, and check them with the data. Returns the number of rows."""
    given.encoder = str(encoder)
    trained = set()
    rows = [(part, row) for part, rows in PARTS.items() for row in rows(False)]
    for _, row in rows:
        if not row.workload:
            continue
        workload = row.load()
        params = workload.Params(**given.resolve(row.params))
        settings: dict[str, Any] = {"seed": 1, "epochs": measures.EPOCHS, **row.runtime}
        check_batch(params.batch_size, Runtime(device=CPU, data=given.data, **settings))
        if hasattr(params, "check_plan"):
            params.check_plan(settings["epochs"], False)
        trained.add((type(params), params.dataset, params.batch_size, params))
        assert not session.missing(set(row.needs) - {"sentence_transformers"})
    largest = {}
    for kind, dataset, size, params in sorted(trained, key=lambda one: one[2]):
        largest[kind, dataset] = size, params
    for _, params in largest.values():
        if hasattr(params, "check_data"):
            params.check_data(given.data)
    assert len({(part, row.name) for part, row in rows}) == len(rows)
    return len(rows)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder") / "bert", small=True)


@pytest.mark.faults
def test_parameters_of_all_rows_fit_generated_data(
    monkeypatch: pytest.MonkeyPatch, encoder: Path, tmp_path: Path
) -> None:
    """Rows with batches of 4,096 images need generated data, since the embedded dataset has too few images."""
    monkeypatch.setenv("ORCHESTRATOR_DATA", str(tmp_path))
    monkeypatch.setattr(inputs_module, "PIXELS", 8)  # small images, for speed
    with Inputs() as given:
        assert check_rows(given, encoder) == 59
        assert given.images_source == "generated"


@pytest.mark.slow
@pytest.mark.data("cifar-10-subset")
def test_parameters_of_all_rows_fit_cifar_images(encoder: Path) -> None:
    with Inputs() as given:
        check_rows(given, encoder)
        assert given.images == given.images_source == CIFAR


def test_first_image_rows_are_resnets_in_bf16_compiled_and_uncompiled() -> None:
    names = [row.name for row in PARTS["4"](False)]
    assert len(names) == 30
    assert names[:4] == [f"{net}, 256, {how}" for net in ("resnet18", "resnet50") for how in ("bf16 compiled", "bf16")]


# Session


def test_errors_and_missing_packages_are_recorded_in_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(row: Row, session: Session) -> Iterator[Result]:
        yield {"step_ms": 1.0}
        raise MemoryError("CUDA out of memory\nTried to allocate")

    built = on_h100(tmp_path, monkeypatch)
    built.run_part("4", [Row("a", too_large), Row("b", too_large, needs=("torch", "nowhere"))])
    first, second = rows_of(built)
    assert first["step_ms"] == 1.0
    assert first["error"] == "MemoryError: CUDA out of memory"
    assert second["missing"] == ["nowhere"]


def test_finished_rows_of_the_same_commit_and_device_are_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []

    def run(row: Row, session: Session) -> Iterator[Result]:
        runs.append(row.name)
        yield {"cut": "no time"} if row.name == "cut" and len(runs) < 3 else {"step_ms": 1.0}

    rows = [Row("whole", run), Row("cut", run)]
    on_h100(tmp_path, monkeypatch).run_part("2", rows)
    second = on_h100(tmp_path, monkeypatch)
    second.run_part("2", rows)
    assert runs == ["whole", "cut", "cut"]
    assert [row["name"] for row in rows_of(second)] == ["whole", "cut"]
    assert not any("cut" in row for row in rows_of(second))
    second.run_part("3", rows[:1])
    for commit in ("ba9876543210", "0123456789ab-dirty", "0123456789ab-dirty", "unknown", "unknown"):
        on_h100(tmp_path, monkeypatch, commit).run_part("2", rows[:1])
    assert runs[3:] == ["whole"] * 6, "rows of another part or commit, or of an unknown one, are run"


def test_a_row_ends_at_its_own_limit_and_at_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(row: Row, session: Session) -> Iterator[Result]:
        yield {"step_ms": 1.0}
        while True:
            time.sleep(0.01)

    built = on_h100(tmp_path, monkeypatch)
    built.run_part("2", [Row("slow", endless, seconds=0.3)])
    monkeypatch.setattr(session, "LEAST_SECONDS", 0.0)
    built.ends = time.monotonic() + 0.3
    built.run_part("2", [Row("late", endless), Row("never", endless)])
    slow, late, never = rows_of(built)
    assert (slow["step_ms"], slow["error"]) == (1.0, "more than 0.3 s")
    assert (late["step_ms"], late["cut"]) == (1.0, "no time")
    assert never["left_out"] == "no time"
    with time_limit(600):
        pass


def test_environment_is_recorded_without_git_and_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert session.current_commit() == "unknown"
    here = session.environment("NVIDIA H100", "0123456789ab")
    assert here["driver"] is None
    assert {
        "torch",
        "torchvision",
        "transformers",
        "numpy",
        "cuda",
        "cudnn",
        "python",
        "device",
        "commit",
    } < here.keys()


def test_nvidia_driver_version_is_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 580.159.04\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert session.environment("NVIDIA H100", "0123456789ab")["driver"] == "580.159.04"


def test_unknown_part_and_missing_cuda_device_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--parts", "1,12", "--out", str(tmp_path)])
    assert "there is no part 12; parts are 1, 2" in capsys.readouterr().err
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit, match="There is no CUDA device"):
            main(["--parts", "3", "--out", str(tmp_path)])


# Measures


def test_step_bytes_match_hand_counts() -> None:
    runtime = Runtime(device=CPU, data=Path(), seed=0, epochs=1)
    mf = Recommender(Recommender.Params(dim=8, batch_size=100), runtime)
    nodes = mf.data.n_users + mf.data.n_items
    adam, gathers, gradient = 7 * nodes * 8, 4 * 300 * 8, 4 * 300 * 8 + nodes * 8
    assert step_bytes(mf) == 4 * (adam + gathers + gradient)
    graph = Recommender(Recommender.Params(dim=8, batch_size=100, backbone="lightgcn", layers=2), runtime)
    edges = 2 * graph.data.pairs.shape[1]
    once = 4 * 4 * nodes * 8 + 2 * (edges * (4 * 8 + 8) + 4 * 4 * nodes * 8)
    assert step_bytes(graph) == step_bytes(mf) + 2 * once
    assert (
        propagation_bytes(10, 8, 30, 1, 2) < propagation_bytes(10, 8, 3000, 1, 2) < propagation_bytes(10, 8, 3000, 1, 4)
    )
    assert step_bytes(object()) == 0


def test_share_of_peak_is_the_larger_of_compute_and_bandwidth() -> None:
    peaks = measures.PEAKS["H100"]
    amounts = {"bf16": 989e9, "bytes": 1.675e9}
    assert measures.shares(2e-3, amounts, peaks) == {"share_of_peak": 0.5, "peak": "bf16"}
    assert measures.shares(2e-3, {**amounts, "bytes": 5.025e9}, peaks) == {"share_of_peak": 0.75, "peak": "bytes"}
    assert measures.shares(2e-3, amounts, None) == {}


@pytest.mark.faults
def test_flops_of_a_compiled_step_equal_those_of_the_plain_step(tmp_path: Path) -> None:
    rows = {row.name: row for row in PARTS["4"](True) if row.name in ("tiny, 8, bf16 compiled", "tiny, 8, bf16")}
    with virtual_cuda(), Inputs(dry=True) as given:
        built = Session(tmp_path, "unknown", 600, given, dry=True)
        built.run_part("4", list(rows.values()))
    compiled, plain = rows_of(built)
    assert compiled["flops"] == plain["flops"] > 0


def test_lightgcn_row_records_that_it_is_not_packed(tmp_path: Path) -> None:
    row = next(row for row in PARTS["3"](True) if row.name == "lightgcn, 2 together")
    with virtual_cuda(), Inputs(dry=True) as given:
        built = Session(tmp_path, "unknown", 600, given, dry=True)
        built.run_part("3", [row])
    assert "has no pack_shape" in rows_of(built)[0]["not_packed"]


def test_device_comparison_uses_equal_batch_orders_on_both_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison of ``tests/unit/workloads/test_gpu.py`` on the virtual device; unequal orders change losses."""
    case = test_gpu.CASES["sgd-batched"]

    def on_both() -> tuple[test_gpu.Learned, test_gpu.Learned]:
        own = test_gpu.learned(case, CPU)
        with virtual_cuda():
            return own, test_gpu.learned(case, test_gpu.CUDA)

    with monkeypatch.context() as patch:
        test_gpu.equal_orders(patch)
        test_gpu.assert_close("sgd-batched", *on_both())
    cpu, cuda = on_both()
    assert cpu[0] != cuda[0]


# Whole parts


def imports(file: Path) -> Iterator[str]:
    """Modules that a test file imports at its top level, and those that imported test modules import."""
    for statement in ast.parse(file.read_text()).body:
        names = [statement.module or ""] if isinstance(statement, ast.ImportFrom) else []
        if isinstance(statement, ast.Import | ast.ImportFrom):
            names += [f"{names[0]}.{one.name}" if names else one.name for one in statement.names]
        for name in names:
            yield name
            below = (measures.ROOT / name.replace(".", "/")).with_suffix(".py")
            if name.startswith("tests.") and below.is_file():
                yield from imports(below)


def test_gpu_tests_import_only_packages_of_a_gpu_machine() -> None:
    """Modules of the workloads are allowed, since the import rules limit their imports in the same way."""
    installed = {"numpy", "scipy", "pytest", "torch", "torchvision", "PIL", "pandas"}
    allowed = {*installed, "tests", "workloads", *sys.stdlib_module_names}
    files = measures.gpu_tests()
    assert measures.ROOT / "tests" / "unit" / "workloads" / "test_gpu.py" in files
    strange = {(file.name, name) for file in files for name in imports(file) if name.split(".")[0] not in allowed}
    assert not strange


@pytest.mark.faults  # imports many modules in a separate process
def test_gpu_tests_are_collected_without_packages_a_gpu_machine_lacks(without_packages: dict[str, str]) -> None:
    """Imports PyTorch and the workloads, but not the orchestrator."""
    words = [
        "-m",
        "pytest",
        "-c",
        os.devnull,
        "--rootdir",
        str(measures.ROOT),
        "--noconftest",
        "-p",
        "no:cacheprovider",
    ]
    files = [str(file) for file in measures.gpu_tests()]
    assert str(measures.ROOT / "tests" / "unit" / "workloads" / "test_gpu.py") in files
    done = subprocess.run(
        [sys.executable, *words, "-qq", "-m", "gpu", "--collect-only", *files],
        cwd=measures.ROOT, env=without_packages, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    counts = dict(line.rsplit(": ", 1) for line in done.stdout.splitlines() if ".py: " in line)
    assert int(counts["tests/unit/workloads/test_gpu.py"]) == len(test_gpu.CASES) + 6
    assert len(counts) == len(files)


@pytest.mark.faults  # takes a minute, or more on a busy machine
@pytest.mark.long
def test_dry_run_of_every_part_writes_all_rows(tmp_path: Path, without_packages: dict[str, str]) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_day", "--dry", "--minutes", "600", "--out", str(tmp_path)]
    done = subprocess.run(
        [*command, "--parts", ",".join(PARTS), "--commit", "0123456789ab"],
        cwd=measures.ROOT, env=without_packages, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Part 5 misses sentence_transformers: rows that need them are left out" in done.stderr
    rows = json.loads((tmp_path / "gpu-day-virtual-0123456789ab.json").read_text())["rows"]
    assert [(row["part"], row["name"]) for row in rows] == [
        (part, row.name) for part, planned in PARTS.items() for row in planned(True)
    ]
    assert not [row for row in rows if {"error", "left_out", "cut"} & row.keys()]
    assert {name for row in rows for name in row.get("missing", ())} == {"sentence_transformers"}
