"""Wrong command lines: one line on standard error, the right exit code and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from orchestrator.cli import app
from orchestrator.cluster import preflight
from orchestrator.config.plan import Plan
from orchestrator.config.spec import ExperimentSpec
from orchestrator.engine import checkpoint
from orchestrator.engine.checkpoint import TENSORS, Checkpoint
from orchestrator.storage import records
from orchestrator.storage.records import RunFolder
from orchestrator.storage.settings import resolve
from tests.support.waiting import HANG_SECONDS

NONE = "--tracking none"
RUN = f"run recommender {NONE} --local"
SWEEP = f"sweep recommender {NONE} --local"


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A function that runs a command line, checks the form of its error, and returns the error line."""

    def type_line(line: str | list[str], code: int, *words: str) -> str:
        arguments = line.split() if isinstance(line, str) else line
        found = app.run(arguments)
        captured = capsys.readouterr()
        hold(captured.err, found, code, *words)
        return captured.err

    return type_line


def hold(stderr: str, found: int, code: int, *words: str) -> None:
    assert stderr.startswith("error: "), stderr
    assert stderr.count("\n") == 1, stderr
    assert stderr.endswith("\n")
    assert "Traceback" not in stderr
    for word in words:
        assert word in stderr
    assert found == code, stderr


@pytest.mark.parametrize("line", ["run mine.py:train", RUN, SWEEP, f"plan {RUN}"])
def test_command_in_a_removed_working_directory_is_refused(
    line: str, refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    refused(line, 2, "The working directory was removed. Change to another one.")


# Arguments


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("rnu", ("Unknown verb: got 'rnu'. Did you mean 'run'? All: ", " --help.")),
        ("data ftech ml-100k", ("Unknown verb: got 'ftech'; allowed: fetch, list, verify", "Did you mean 'fetch'?")),
        ("run --trails 3", ("No such option: --trails", "run --help")),
        ("run recommender --lr .1", ("No such option: --lr. Parameters and keys of the plan are words: lr=VALUE",)),
        (
            "run recommender --trials 3",
            (
                "No such option: --trials. It is an option of sweep. See: ",
                " run --help",
            ),
        ),
        (
            "reproduce run latest --local",
            (
                "No such option: --local. See: ",
                "reproduce run --help",
            ),
        ),
        ("data verify users.csv", ("a dataset path must be absolute: got 'users.csv'", "/users.csv")),
        ("data verify some/users.csv", ("a dataset path must be absolute: got 'some/users.csv'",)),
        ("sweep recommender --trails 3", ("No such option", "--trails", "--trials", "sweep --help")),
        ("run recommender --workers two", ("Resource workers is not valid: got 'two'",)),
        ("run recommender --seed", ("--seed", "requires an argument", "--help")),
        ("promote rec", ("Missing option '--to'", "promote --help")),
        ("ui --port 0", ("Invalid value for '--port'", "ui --help")),
        ("run", ("No workload is given", "--config FILE")),
        ("run epochs=5", ("No workload is given",)),
        ("sweep --local", ("No workload is given. orchestrator sweep WORKLOAD key=value",)),
        ("compare --test foo latest", ("Invalid value for '--test': 'foo' is not one of 'welch', 'permutation'",)),
        ("status", ("There is no run, sweep or job yet. Looked in ",)),
        ("run recomender", ("Unknown workload: got 'recomender'; allowed: ", "Did you mean 'recommender'?")),
        ("sweep recomender", ("Unknown workload: got 'recomender'", "Did you mean 'recommender'?")),
        ("workloads recomender", ("Unknown workload: got 'recomender'", "Did you mean 'recommender'?")),
        (f"{RUN} lr=0.1 epochs", ("Not a setting: got 'epochs'; allowed: key=value",)),
        (f"{RUN} lr=1 lr=2", ("lr is given twice: got 1 and 2",)),
        (
            f"{RUN} lrr=1",
            ("Unknown parameter: got 'lrr'. Did you mean 'lr'? All: orchestrator workloads recommender.",),
        ),
        (f"{RUN} zzzzz=1", ("Unknown parameter: got 'zzzzz'; allowed: abstention_part, accumulate, ",)),
        (f"{RUN} regstr=rec", ("Unknown parameter: got 'regstr'. Did you mean --register?",)),
        (f"{RUN} max_gpu=1", ("Unknown parameter: got 'max_gpu'. Did you mean --max-gpus?",)),
        (f"{RUN} max-gpus=1", ("max_gpus is an option: got max-gpus=1. Write --max-gpus 1.",)),
        (f"{RUN} local=true", ("local is an option: got local=true. Write --local.",)),
        (f"{RUN} from=r1", ("origin is an option: got from=r1. Write --from r1.",)),
        (f"{RUN} trials=3", ("--trials is an option of sweep, not of run. Remove it, or use orchestrator sweep.",)),
        (f"{SWEEP} profile=3", ("--profile is an option of run, not of sweep. Remove it, or use orchestrator run.",)),
        (f"{RUN} lr=fast", ("Parameter lr is not valid: got 'fast'; allowed: a valid number",)),
        (f"{RUN} lr=2", ("Parameter lr is not valid: got '2'; allowed: less than or equal to 1",)),
        (f"{RUN} dim=0", ("Parameter dim is not valid: got '0'; allowed: greater than or equal to 1",)),
        (f"{RUN} backbone=lightgnc", ("got 'lightgnc'; allowed: 'mf', 'lightgcn'", "Did you mean 'lightgcn'?")),
        (f"{RUN} epochs=0", ("Plan setting epochs is not valid: got '0'",)),
        (
            f"{RUN} precision=fp16",
            ("Plan setting precision is not valid: got 'fp16'; allowed: 'fp32', 'tf32' or 'bf16'",),
        ),
        (f"{RUN} layers=2", ("layers=2 has no effect with backbone=mf",)),
        (f"{RUN} batch_size=1001 accumulate=2", ("got 1001; allowed: a multiple of 2", "Use batch_size=1000")),
        (f"run recommender {NONE} --workers 3", ("3 worker(s)", "got 1024", "Use batch_size=1023")),
        (f"run recommender {NONE} --workers 2 --gpus-per-worker 0.5", ("cannot share a GPU",)),
        (f"{RUN} --workers 2", ("--local runs in one process: got workers=2",)),
        (f"{RUN} --seed -1", ("The seed is not valid: got -1; allowed: an integer from 0",)),
        (
            f"{RUN} dataset=synthtic",
            ("Unknown dataset", "'synthtic'", "ml-100k", "Did you mean 'synthetic'?"),
        ),
        (f"{RUN} dataset=ml-100k", ("100k_train.csv", "is missing", "orchestrator data fetch ml-100k")),
        ("data fetch ml100k", ("Unknown dataset: got 'ml100k'", "Did you mean 'ml-100k'?")),
        ("run recommender --tracking mlruns", ("not supported: got 'mlruns'; allowed: http(s)://",)),
        (f"{SWEEP} --sampler tep", ("got 'tep'; allowed: 'tpe', 'gp', 'cmaes', 'random', 'grid' or 'auto'", "'tpe'?")),
        (
            f"{SWEEP} --scheduler median5",
            ("got 'median5'; allowed: 'asha', 'hyperband', 'median', 'racing', 'pbt' or 'none'",),
        ),
        (f"{SWEEP} --sampler grid", ("A grid needs steps, and lr has none", "Give it step=")),
        (f"{SWEEP} --scheduler pbt --trials 3", ("PBT cannot be used here: a population needs at least 4",)),
        (f"{SWEEP} --seeds 0", ("Search setting seeds is not valid: got 0",)),
        (f"{SWEEP} --max-device-hours 0", ("Search setting max_device_hours is not valid: got 0",)),
        (f"{SWEEP} --time-budget 0", ("Search setting time_budget is not valid: got 0",)),
        (f"{SWEEP} --trial-timeout 0", ("Search setting trial_timeout is not valid: got 0",)),
        (f"{SWEEP} --trial-timeout 5", ("--trial-timeout", "--local", "Leave out one of the two")),
        (f"{RUN} --ray-address auto", ("A local run uses no Ray", "--ray-address and --local", "Leave out one")),
        (f"{SWEEP} --more-trials 3", ("--more-trials and --retry-failed continue a sweep", "--resume ID")),
        (f"{SWEEP} --retry-failed", ("--more-trials and --retry-failed continue a sweep",)),
        (
            "sweep --resume latest --more-trials -1",
            ("--more-trials is not valid: got -1; allowed: greater than",),
        ),
        (
            f"{RUN} sampler=bns bns_prior=occupation",
            ("synthetic has no occupations of its users", "Set another bns_prior"),
        ),
        (f"{RUN} dataset_min_rating=4", ("dataset_min_rating needs ratings, and the dataset has none", "Leave it out")),
        (f"{SWEEP} dataset_min_rating=4", ("dataset_min_rating needs ratings",)),
        (f"{SWEEP} sampler=bns bns_prior=occupation", ("synthetic has no occupations of its users",)),
        ("run vera refit=true", ("a refit trains on the validation part", "Set refit=false")),
        ("sweep lifelong epochs=3 --trials 2", ("epochs=3 are too few for 5 sessions", "Set epochs=5 or more")),
        ("run text_ranker refit=true --local", ("where bm25_weight would be chosen", "or refit=false")),
        (f"{SWEEP} --keep best", ("Unknown word for --keep: got 'best'; allowed: all, none, winner",)),
        (f"{SWEEP} --warm-start nothing", ("There is no sweep yet: got 'nothing'",)),
        (f"{SWEEP} objective=recall", ("recall is not declared by the workload", "recall:max")),
        (f"{SWEEP} objective=recall_at_2", ("no recall_at_2 with cutoffs=5,10,20", "or add 2 to cutoffs")),
        (f"{RUN} cutoffs=10,50", ("no ndcg_at_20 with cutoffs=10,50", "Set objective=ndcg_at_50")),
        (f"{SWEEP} cutoffs=10,50", ("no ndcg_at_20 with cutoffs=10,50", "Set objective=ndcg_at_50")),
        (f"{RUN} cutoffs=10,0", ("Parameter cutoffs is not valid: got '0'; allowed: greater than or equal to 1",)),
        (f"{RUN} objective=recall_at_20:up", ("direction of the objective recall_at_20", "got 'recall_at_20:up'")),
        (f"{SWEEP} objective=ndcg_at_20,recall_at_20:max --scheduler asha", ("stops trials by one objective",)),
        (f"{RUN} --name latest", ("The name is not valid: got 'latest'",)),
        (f"{SWEEP} --name a/b", ("The name is not valid: got 'a/b'",)),
        (f"{SWEEP} --trials 0", ("Search setting trials is not valid: got 0",)),
        (f"{SWEEP} --space spce", ("Unknown search space of recommender: got 'spce'", "Did you mean 'space'?")),
        (f"{SWEEP} --space none.py:space", ("search space's file does not exist", "none.py")),
        (f"{SWEEP} refit=only", ("refit=only is not possible",)),
        (f"{SWEEP} --space mf lr=0.1 dim=8 weight_decay=0", ("Nothing is left to search",)),
        ("promote rec --to latest", ("The alias latest is reserved",)),
        (f"promote rec --to champion {NONE}", ("no model registry with tracking off",)),
        (f"{RUN} --register rec", ("cannot be registered with tracking off", "Leave out --register")),
        (f"{SWEEP} --register rec", ("cannot be registered with tracking off",)),
        ("it's", ('Unknown verb: got "it\'s"',)),
        (f"{RUN} --from=", ("There is no run or sweep yet: got ''",)),
        (f"plan --slurm --json {RUN}", ("--slurm prints options of sbatch", "Leave out --json")),
        (f"plan {SWEEP} --keep best", ("Unknown word for --keep: got 'best'",)),
        (f"plan --gpus-per-node 4 {RUN}", ("--gpus-per-node is for --slurm", "Add --slurm")),
        ("submit", ("nothing to submit", "orchestrator submit -- ")),
        ("submit -- swep recommender", ("Unknown verb to submit: got 'swep'", "Did you mean 'sweep'?")),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_stored(
    line: str, words: tuple[str, ...], refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_DATA", str(tmp_path / "data"))
    refused(line, 2, *words)
    assert not (tmp_path / "home" / "storage").exists() or not list((tmp_path / "home" / "storage").iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["run", "recommender", "note=a\udcffb"],
        ["run", "recommender", "--register", "a\udcffb"],
        ["sweep", "recommender", "--experiment", "a\udcffb"],
        ["logs", "a\udcffb"],
    ],
)
def test_command_line_word_that_is_not_utf_8_is_refused(
    words: list[str], refused: Callable[..., str], home: Path
) -> None:
    """Python decodes such bytes as lone surrogates, which neither MLflow nor an HTML page accepts."""
    refused(words, 2, f"A word of the command line is not UTF-8: got {words[-1]!r}. Write it in UTF-8.")
    assert not (home / "storage").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "recommender", 'note=["\\udcff"]'], "The value of note is not UTF-8: got '\\udcff'"),
        (["run", "recommender", "--config", "exp.yaml"], "A text in exp.yaml is not UTF-8: got 'a\\udcff'"),
        (["run", "recommender"], "The setting experiment is not UTF-8: got 'a\\udcff'"),
    ],
)
def test_setting_that_is_not_utf_8_is_refused(
    words: list[str], says: str, refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("exp.yaml").write_text('workload: recommender\nparams: {note: "a\\udcff"}\n')
    if len(words) == 2:
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "a\udcff")
    refused(words, 2, says)


# Files


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("workload: recommender\nparams: {lr: 0.1\n", ("exp.yaml, line 3, column 1 is not valid YAML",)),
        ("workload: recommender\n\nparams:\n  lr: 7\n", ("Parameter lr (exp.yaml, line 4) is not valid: got 7",)),
        (
            "workload: recommender\nplan:\n  epoch: 7\n",
            ("Unknown plan setting (exp.yaml, line 3): got 'epoch'", "'epochs'?"),
        ),
        ("workload: recommender\nparms: {}\n", ("line 2: got 'parms'", "Did you mean 'params'?")),
        ("workload: recomender\n", ("Unknown workload: got 'recomender'",)),
        ("- recommender\n", ("exp.yaml must hold a mapping: got list",)),
        ("extends: exp.yaml\n", ("exp.yaml extends itself",)),
        ("1: 2\n", ("exp.yaml, line 1: a key must be a name: got 1",)),
    ],
)
def test_invalid_configuration_file_is_refused(
    text: str, words: tuple[str, ...], refused: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "exp.yaml").write_text(text)
    refused(f"run --local {NONE} --config {tmp_path}/exp.yaml", 2, *words)


def test_missing_configuration_file_is_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    refused(f"run --config {tmp_path}/none.yaml", 2, f"The file {tmp_path}/none.yaml does not exist")


GOOD = "user,item,rating\n0,1,5\n"


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ("user,item,rating\n0,1,5\n0,2\n", ("line 3", "the line is truncated", "expected 3 fields user,item,rating")),
        ("user,film,rating\n0,1,5\n", ("line 1", "the columns are wrong: got 'user,film,rating'", "user,item,rating")),
        ("user,item,rating\n0,1,nan\n", ("line 2", "a NaN in column rating", "a rating in 1..5")),
        ("user,item,rating\n0,9999,4\n", ("line 2", "an id out of range in column item", "an integer in 0..1681")),
        (GOOD, ("the checksum differs", "sha256")),
    ],
)
def test_error_of_a_damaged_dataset_names_the_file(
    train: str, words: tuple[str, ...], refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data" / "ml-100k"
    folder.mkdir(parents=True)
    (folder / "100k_train.csv").write_text(train)
    (folder / "100k_test.csv").write_text("user,item,rating\n0,7,5\n")
    monkeypatch.setenv("ORCHESTRATOR_DATA", str(tmp_path / "data"))
    place = (f"{folder}/100k_train.csv", "orchestrator data fetch ml-100k")
    refused(f"{RUN} dataset=ml-100k", 2, *place, *words)
    refused(f"{SWEEP} dataset=ml-100k", 2, *place, *words)


def test_more_noise_than_free_pairs_is_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    table = tmp_path / "own.csv"
    table.write_text("user,item\n" + "".join(f"{row % 4},{row // 4}\n" for row in range(19)))
    words = ("too few pairs without an interaction for the noise: got 1; expected 15", "at most 0.0666")
    for verb in (RUN, SWEEP):
        refused(f"{verb} dataset={table} dataset_noise=1", 2, *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def space(trial):\n    return {'lr': trial.suggest_float('lr', 0.1, 0.2)\n", ("SyntaxError", "line 2")),
        ("def space(trial):\n    return {'lrr': trial.suggest_float('lr', 0.1, 0.2)}\n", ("got 'lrr'", "'lr'?")),
        ("def space(trial):\n    return {'lr': trial.suggest_float('lr', 2.0, 3.0)}\n", ("lr is not valid: got ",)),
        (
            "def space(trial):\n    return trial.suggest_float('lr', 0.1, 0.2)\n",
            ("must return the parameters: got float",),
        ),
        (
            "def space(trial):\n    return {'lr': trial.suggest('lr')}\n",
            ("The search space failed: AttributeError", "(mine.py:2)"),
        ),
        ("def spaec(trial):\n    return {}\n", ("Unknown function in", "got 'space'; allowed: spaec")),
    ],
)
def test_invalid_search_space_file_is_refused(
    text: str, words: tuple[str, ...], refused: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(text)
    refused(f"{SWEEP} --space {tmp_path}/mine.py:space", 2, *words)


# Unavailable resources and services


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{RUN} --cpus-per-worker 4096", ("too small: got 1 worker(s) of 4096 CPU each; allowed: ", "Request fewer")),
        (f"{RUN} --gpus-per-worker 512", ("This machine is too small: got 1 worker(s) of ", "512 GPU each")),
        (f"run recommender {NONE} --workers 512", ("too small: got 512 worker(s)",)),
        (f"{SWEEP} --cpus-per-worker 4096", ("too small",)),
        (f"run recommender {NONE} --ray-address 127.0.0.1:9", ("No Ray answers at 127.0.0.1:9", "ray start --head")),
        (f"sweep recommender {NONE} --ray-address 127.0.0.1:9", ("No Ray answers at 127.0.0.1:9",)),
        ("run recommender --local --tracking http://127.0.0.1:9", ("No MLflow answers at http://127.0.0.1:9",)),
        ("sweep recommender --local --tracking http://127.0.0.1:9", ("No MLflow answers at http://127.0.0.1:9",)),
        ("promote rec --to champion --tracking http://127.0.0.1:9", ("No MLflow answers at http://127.0.0.1:9",)),
        ("predict rec@champion --input - --tracking http://127.0.0.1:9", ("No MLflow answers at",)),
        (
            f"{RUN} --storage FILE/runs",
            ("The storage ", "FILE/runs cannot be used: FILE is a file, not a folder", "--storage"),
        ),
        (f"{SWEEP} --storage FILE/runs", ("FILE is a file, not a folder",)),
        (
            "run recommender --local --tracking sqlite:///FILE/mlflow.db",
            ("The folder of the tracking store, FILE, cannot be used", "--tracking"),
        ),
    ],
)
def test_unavailable_resources_and_services_exit_with_code_3(
    line: str, words: tuple[str, ...], refused: Callable[..., str], tmp_path: Path
) -> None:
    file = tmp_path / "regular"
    file.write_text("what root cannot write either")
    words = tuple(word.replace("FILE", str(file)) for word in words)
    refused(line.replace("FILE", str(file)), 3, *words)
    storage = tmp_path / "home" / "storage"
    assert not storage.exists() or list(storage.iterdir()) == [], "no run may be created"


def test_home_below_a_regular_file_exits_with_code_3(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "regular").write_text("")
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "regular" / "home"))
    refused("run recommender --local", 3, f"{tmp_path}/regular/home", "is a file, not a folder")


# Resuming


def interrupted(kind: Any = "run", identity: dict[str, str] | None = None) -> RunFolder:
    """A run that was interrupted after a checkpoint with ``identity``, by default the identity of the run."""
    params = preflight.parameters("recommender", {})
    spec = ExperimentSpec(workload="recommender", params=params, plan=Plan(epochs=3, refit=True))
    asked = {"experiment": spec.model_dump(mode="json"), "options": {"local": True, "register": None}}
    folder = records.create(resolve().storage, kind, "recommender", asked, "orchestrator run recommender")
    saved = Checkpoint(identity or spec.identity, 1, {"weights": torch.ones(9)})
    checkpoint.write(folder.checkpoints / checkpoint.name(1), saved)
    folder.update(tracking=None)
    folder.release("interrupted", 130)
    return folder


def test_resume_from_a_truncated_checkpoint_is_refused(refused: Callable[..., str]) -> None:
    folder = interrupted()
    os.truncate(folder.checkpoints / checkpoint.name(1) / TENSORS, 20)
    refused("run --resume latest", 2, str(folder.checkpoints), "is truncated: got 20 bytes; allowed: ", "Remove it")


def test_resume_from_a_checkpoint_of_another_workload_is_refused(refused: Callable[..., str]) -> None:
    folder = interrupted(identity={"workload": "simclr", "fingerprint": "aa"})
    words = ("belongs to another workload: got simclr; allowed: recommender", "Resume the run it was written by")
    refused(f"run --resume {folder.id}", 2, str(folder.checkpoints), *words)


def test_resume_of_a_finished_run_is_refused(refused: Callable[..., str]) -> None:
    folder = interrupted()
    folder.acquire()
    folder.release("finished", 0)
    refused(f"run --resume {folder.id}", 2, f"{folder.id} has already finished", "Start a new run")


def test_resume_of_a_run_with_an_active_driver_is_refused(refused: Callable[..., str]) -> None:
    folder = interrupted()
    folder.acquire()
    words = ("is being driven by another process", f"orchestrator stop {folder.id}")
    refused(f"run --resume {folder.id}", 2, folder.id, *words)


@pytest.mark.parametrize("verb", ["run --resume", "sweep --resume", "status", "logs", "stop", "sync"])
def test_error_of_an_unknown_id_suggests_the_nearest_id(verb: str, refused: Callable[..., str], database: Path) -> None:
    kind = verb.partition(" ")[0] if "--resume" in verb else "run"
    folder = interrupted(kind)
    refused(f"{verb} {folder.id[:-1]}x", 2, f"got '{folder.id[:-1]}x'", f"Did you mean {folder.id}?")


@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_resume_latest_without_any_run_is_refused(verb: str, refused: Callable[..., str]) -> None:
    refused(f"{verb} --resume latest", 2, f"There is no {verb} yet")


def test_resume_of_a_run_with_the_sweep_verb_is_refused(refused: Callable[..., str]) -> None:
    folder = interrupted()
    refused(f"sweep --resume {folder.id}", 2, f"orchestrator run --resume {folder.id}")


@pytest.mark.parametrize(
    ("verb", "more"),
    [
        *(
            ("run", more)
            for more in ("recommender", "lr=0.1", "--seed 0", "--local", "--register rec", "--config exp.yaml")
        ),
        *(
            ("sweep", more)
            for more in ("recommender", "lr=0.1", "--seed 0", "--local", "--trials 3", "--space mf", "--sampler gp",
                         "--scheduler none", "--concurrency 2", "--time-budget 60", "--register rec",
                         "--config exp.yaml", "--seeds 2", "--keep all",
                         "--warm-start latest", "--max-device-hours 1", "--trial-timeout 9", "--name s", "--pack off")
        ),
    ],
)  # fmt: skip
def test_resume_with_further_arguments_is_refused(verb: str, more: str, refused: Callable[..., str]) -> None:
    word = more.split()[0]
    takes = f"It takes only {'--more-trials and --retry-failed' if verb == 'sweep' else '--workers, '}"
    refused(f"{verb} --resume latest {more}", 2, "--resume continues with the recorded options", f"got {word}", takes)


# Help


@pytest.mark.parametrize("line", ["", "data", "reproduce"])
def test_command_without_arguments_prints_its_usage(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(line.split()) == 2
    assert capsys.readouterr().err.startswith("Usage: ")


@pytest.mark.parametrize("group", ["", "data"])
def test_help_shows_untruncated_summaries_within_80_columns(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    app.run([*group.split(), "--help"])
    text = capsys.readouterr().out
    assert "..." not in text.partition("Commands:")[2]
    assert max(map(len, text.splitlines())) <= 80


def test_every_verb_has_an_example() -> None:
    def verbs(command: Any, words: str) -> Iterator[tuple[str, Any]]:
        for name, found in getattr(command, "commands", {}).items():
            yield from verbs(found, f"{words} {name}") if hasattr(found, "commands") else [(f"{words} {name}", found)]

    for words, verb in verbs(typer.main.get_command(app.app), "orchestrator"):
        example = verb.help.partition("Example: ")[2]
        assert example.startswith(f"{words} ") or example == words, words


def test_version_option_prints_the_installed_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["--version"]) == 0
    assert capsys.readouterr().out == f"orchestrator {version('ray-experiment-orchestrator')}\n"


def test_version_option_without_an_installation_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", absent)
    assert app.run(["--version"]) == 2
    assert "is not installed, only on Python's path. Install it: pip install ." in capsys.readouterr().err


@pytest.mark.parametrize(("one", "names"), [("thesis-5.2", ("BPR; ", "InfoNCE; ")), ("thesis-fig4.2", ("RNS. ",))])
def test_reproduce_help_names_the_methods_of_the_publication(
    one: str, names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    app.run(["reproduce", one, "--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in names), text


def test_sync_help_does_not_mention_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    app.run(["sync", "--help"])
    assert "job" not in capsys.readouterr().out


# The registry


@pytest.mark.parametrize(
    "line", ["promote recc --to champion", "predict recc@champion --input -", "predict recc --input -"]
)
def test_unknown_registered_model_is_refused(line: str, refused: Callable[..., str], database: Path) -> None:
    refused(line, 2, "There is no registered model yet: got 'recc'", "--register recc")


# Commands in a subprocess


def test_ls_with_closed_standard_output_exits_with_code_0(home: Path) -> None:
    command = f"{sys.executable} -m orchestrator ls >&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def orchestrator(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_SECONDS,
    )


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("rnu", 2, ("Unknown verb: got 'rnu'",)),
        ("promote rec --to champion --tracking http://127.0.0.1:9", 3, ("No MLflow answers at",)),
        (f"{SWEEP} --space spce", 2, ("Unknown search space",)),
    ],
)
def test_process_prints_one_error_line_and_exits_with_the_error_code(
    line: str, code: int, words: tuple[str, ...]
) -> None:
    done = orchestrator(*line.split())
    hold(done.stderr, done.returncode, code, *words)
    assert done.stdout == ""


HEAVY = {"matplotlib", "mlflow", "numpy", "optuna", "pandas", "pyarrow", "pydantic", "ray", "torch", "transformers"}


@pytest.mark.parametrize(
    ("line", "allowed", "words"),
    [
        ("--help", set(), ()),
        (f"{RUN} lr=-1", {"pydantic"}, ("Parameter lr is not valid",)),
        (f"{SWEEP} lr=-1", {"numpy", "optuna", "pydantic"}, ("Parameter lr is not valid",)),
        (f"{RUN} --config none.yaml", {"pydantic"}, ("none.yaml",)),
        ("run --resume nothing", {"pydantic"}, ("There is no run yet",)),
    ],
)
def test_help_and_usage_errors_import_only_allowed_heavy_packages(
    line: str, allowed: set[str], words: tuple[str, ...]
) -> None:
    """Help and usage errors must appear without delay; benchmarks/startup.py measures the seconds."""
    command = [sys.executable, "-X", "importtime", "-m", "orchestrator", *line.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = done.stderr.splitlines(keepends=True)
    imported = {row.rpartition("|")[2].strip() for row in rows if row.startswith("import time:")}
    assert "orchestrator.cli.app" in imported
    assert imported & HEAVY <= allowed
    if words:
        hold("".join(row for row in rows if not row.startswith("import time:")), done.returncode, 2, *words)
        assert done.stdout == ""


def test_sweep_module_imports_neither_torch_nor_ray_nor_mlflow() -> None:
    """Only the trials need these packages. Their import would cost each sweep and each resume a second."""
    code = "import sys; from orchestrator.sweeps import sweep; print({'torch', 'ray', 'mlflow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
