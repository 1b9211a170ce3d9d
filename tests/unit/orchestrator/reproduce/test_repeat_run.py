"""Repeating a run: differences from its record, comparison of metrics, and the script."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cluster import preflight
from orchestrator.config.spec import ExperimentSpec, Resources
from orchestrator.errors import DONE, USAGE, UserError
from orchestrator.provenance import machine
from orchestrator.provenance import record as provenance
from orchestrator.provenance.source import Source
from orchestrator.reproduce import differences, run_cache
from orchestrator.reproduce.differences import Difference
from orchestrator.reproduce.recorded_run import Recorded
from orchestrator.reproduce.repeat_run import Compared, compare, overall
from orchestrator.reproduce.script import commands
from orchestrator.storage.settings import Settings, resolve


def seen(known: Recorded, settings: Settings, *sources: Source) -> dict[str, Difference]:
    return {one.what: one for one in differences.all_of(known, settings, sources)}


def changed(known: Recorded, **environment: Any) -> Recorded:
    return replace(known, environment={**known.environment, **environment})


@pytest.fixture
def settings(toy_workload: str) -> Settings:
    return resolve()


@pytest.fixture
def known(settings: Settings, tmp_path: Path) -> Recorded:
    """The record of a run in the current environment."""
    spec = ExperimentSpec(workload="toy", params=preflight.parameters("toy", {"lr": 0.07}))
    return Recorded("toy-1", None, "run", spec, tmp_path, provenance.environment((), {"local": True}))


def test_no_difference_is_reported_right_after_the_run(known: Recorded, settings: Settings) -> None:
    assert seen(known, settings) == {}


def test_package_differences_list_torch_first(known: Recorded, settings: Settings) -> None:
    then = {**known.environment["packages"], "torch": "1.0", "absent": "1", "aaa": "2"}
    assert list(seen(changed(known, packages=then), settings)) == ["package torch", "package aaa", "package absent"]


def test_differences_of_the_machine_are_listed(
    known: Recorded, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    there = {"cpu": "Other", "cpus": 1024, "gpus": ["H100"], "memory_gib": 1}
    nodes = [{"CPU": 64.0, "GPU": 0.0, "gpus": []}]
    then = changed(
        known,
        python="3.0",
        machine=there,
        cluster={"nodes": nodes},
        variables={**known.environment["variables"], "OMP_NUM_THREADS": "1"},
    )
    told = {name: (one.then, one.now) for name, one in seen(then, settings).items()}
    here = machine.describe()
    assert told.pop("python")[0] == "3.0"
    assert told == {
        "processor": ("Other", here["cpu"]),
        "cores": ("1024", str(here["cpus"])),
        "GPUs of this machine": ("H100", ", ".join(here["gpus"]) or None),
        "cluster": ("1 x 64 CPU", f"1 x {here['cpus']} CPU"),
        "variable OMP_NUM_THREADS": ("1", "7"),
    }


def test_short_and_full_names_of_one_gpu_are_not_a_difference(
    known: Recorded, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray calls an ``NVIDIA H100 80GB HBM3`` H100."""
    here = {**machine.describe(), "gpus": ["NVIDIA H100 80GB HBM3"] * 2}
    monkeypatch.setattr(machine, "describe", lambda: here)
    monkeypatch.setattr(differences, "this_machine", lambda: [{"CPU": 8.0, "GPU": 2.0}])
    for kind, now in (("H100", None), ("A100", "1 x 8 CPU, 2 GPU NVIDIA H100 80GB HBM3")):
        nodes = [{"CPU": 8.0, "GPU": 2.0, "gpus": [kind]}]
        told = seen(changed(known, machine=here, cluster={"nodes": nodes}), settings)
        assert (told["cluster"].now if told else None) == now


def test_differences_of_the_source_code_are_listed(known: Recorded, settings: Settings) -> None:
    (known.files / "source.diff").write_text("diff --git a/x.py b/x.py\n+1\n")
    source = {"name": "project", "commit": "a" * 40, "dirty": True, "changed": ["x.py"], "diff": "source.diff"}
    then = changed(known, sources=[source | {"left_out": ["d.bin: binary", "n.txt: no source file"]}])
    same = Source("project", "a" * 40, dirty=True, changed=("x.py",), diff="diff --git a/x.py b/x.py\n+1\n")
    assert set(seen(then, settings, same)) == {"changes of project that the record lacks"}
    told = seen(then, settings, Source("project", "b" * 40, dirty=False))
    assert str(told["commit of project"]) == f"commit of project: {'a' * 12} then, {'b' * 12} now"
    assert str(told["uncommitted changes of project"]) == "uncommitted changes of project: 1 file then, none now"
    assert "d.bin" in str(told["changes of project that the record lacks"])
    assert "n.txt" not in str(told["changes of project that the record lacks"])
    resumed = [{"time": "2026", "sources": [{"name": "project", "commit": "c"}]}]
    assert "code of a resume" in seen(changed(then, resumed=resumed), settings, same)


def test_changed_input_file_is_refused_and_gets_another_run_name(home: Path, tmp_path: Path) -> None:
    settings = resolve({"tracking": "none"})
    file = tmp_path / "own.parquet"

    def spec() -> ExperimentSpec:
        file.write_bytes(file.name.encode() + bytes([len(names)]))
        own = {"sampler": "bns", "bns_prior": "file", "prior_file": str(file)}
        return ExperimentSpec(workload="recommender", params=preflight.parameters("recommender", own))

    names: list[str] = []
    for _ in range(2):
        names.append(run_cache.name_of(spec(), settings, "about"))
    assert names[0] != names[1]
    now = preflight.input_files("recommender", spec().params)
    assert list(now) == ["prior_file"]
    provenance.write(tmp_path, {"experiment": {}}, (), inputs=now)
    environment = json.loads((tmp_path / provenance.ENVIRONMENT).read_text())
    assert environment["inputs"] == now
    known = Recorded("r-1", None, "run", spec(), tmp_path, environment)
    assert "prior_file" not in str(differences.all_of(known, settings, ()))
    with pytest.raises(UserError, match=r"The file of prior_file of r-1 has changed.*recorded 0"):
        differences.all_of(changed(known, inputs={"prior_file": "0"}), settings, ())
    file.unlink()
    with pytest.raises(UserError, match=r"own\.parquet cannot be read: No such file"):
        preflight.input_files("recommender", known.spec.params)  # type: ignore[union-attr]


def test_collection_and_first_stage_files_have_content_digests(tmp_path: Path) -> None:
    """The parameters are others than ``dataset``; a built-in collection has no digest, since its files are known."""
    (tmp_path / "queries.jsonl").write_text("one")
    run = tmp_path / "run.trec"
    run.write_text("1 Q0 2 1 0.5 us")
    seen = []
    for _ in range(2):
        collection = preflight.input_files("bi_encoder", {"calibrate_on": str(tmp_path)})
        seen.append({**collection, **preflight.input_files("text_ranker", {"first_stage": str(run)})})
        run.write_text("1 Q0 3 1 0.5 us")
    assert list(seen[0]) == ["calibrate_on", "first_stage"]
    assert all(seen[0][name] != seen[1][name] for name in seen[0])
    assert preflight.input_files("bi_encoder", {"calibrate_on": "scifact"}) == {}
    assert preflight.input_files("text_ranker", {}) == {}


@pytest.mark.parametrize(
    ("workload", "name"),
    [("bi_encoder", "encoder"), ("text_ranker", "encoder"), ("vera", "encoder"), ("lifelong", "encoder"),
     ("simclr", "encoder_weights"), ("simclr", "probe_dataset")],
)  # fmt: skip
def test_input_files_have_digests_of_user_encoders_and_datasets(workload: str, name: str, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    given = own / "weights"
    given.write_text("a")
    path = given if name == "encoder_weights" else own
    before = preflight.input_files(workload, {name: str(path)})
    assert list(before) == [name]
    given.write_text("bc")
    assert preflight.input_files(workload, {name: str(path)}) != before
    assert preflight.input_files(workload, {"encoder": "minilm", "probe_dataset": "stl-10"}) == {}


def test_other_data_are_refused_with_both_digests(
    known: Recorded, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "fingerprint", lambda workload, params, root: "there")
    with pytest.raises(UserError, match="there, recorded here") as refused:
        seen(replace(known, data="here"), settings)
    assert refused.value.code == USAGE


def with_params(known: Recorded, **params: Any) -> Recorded:
    assert isinstance(known.spec, ExperimentSpec)
    return replace(known, spec=known.spec.model_copy(update={"params": {**known.spec.params, **params}}))


def test_recorded_parameters_that_no_longer_exist_are_refused_by_name(known: Recorded, settings: Settings) -> None:
    with pytest.raises(UserError, match="got old_one, older") as refused:
        seen(with_params(known, older=1, old_one=2), settings)
    assert refused.value.code == USAGE


def test_a_value_that_is_no_longer_allowed_is_refused(known: Recorded, settings: Settings) -> None:
    with pytest.raises(UserError, match="Parameter lr is not valid"):
        seen(with_params(known, lr=2.0), settings)


def test_new_parameter_is_listed_with_its_default(known: Recorded, settings: Settings) -> None:
    assert isinstance(known.spec, ExperimentSpec)
    params = {name: value for name, value in known.spec.params.items() if name != "momentum"}
    old = replace(known, spec=known.spec.model_copy(update={"params": params}))
    assert str(seen(old, settings)["parameter momentum"]).endswith("0.5 now")


def test_a_member_of_a_population_is_refused(known: Recorded, settings: Settings) -> None:
    member = replace(known, spec=known.spec.model_copy(update={"population": "abc"}))
    with pytest.raises(UserError, match="Reproduce its sweep"):
        seen(member, settings)


def test_resources_are_reduced_to_the_devices_of_this_machine(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "this_machine", lambda: [{"CPU": 2.0, "GPU": 0.0}])

    def here(**asked: float) -> Resources:
        return preflight.available_resources(Resources.model_validate(asked), settings, local=False)

    assert here(workers=2) == Resources(workers=2)
    assert here(gpus_per_worker=1) == Resources()
    assert here(workers=4, cpus_per_worker=4) == Resources(cpus_per_worker=2)
    monkeypatch.setattr(preflight, "this_machine", lambda: [{"CPU": 8.0, "GPU": 8.0}])
    smaller = Resources(gpus_per_worker=1, cpus_per_worker=8, max_gpus=2)
    assert here(gpus_per_worker=1, cpus_per_worker=16, max_gpus=2) == smaller
    monkeypatch.setattr(preflight, "this_machine", lambda: [{"CPU": 8.0, "GPU": 1.0}])
    assert here(gpus_per_worker=2) == Resources(gpus_per_worker=1)
    assert here(gpus_per_worker=0.5, cpus_per_worker=16) == Resources(gpus_per_worker=0.5, cpus_per_worker=8)
    far = replace(settings, ray_address="ray://cluster:10001")
    assert preflight.available_resources(Resources(workers=64), far, local=False) == Resources(workers=64)


# The verdict


def test_metrics_are_compared_as_equal_within_tolerance_or_different() -> None:
    then = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": float("nan"), "system/cpu": 3.0}
    assert compare(then, {"a": 1.0, "b": 1.0005, "c": 1.1, "e": float("nan")}, 1e-3)[:4] == [
        Compared("a", 1.0, 1.0, "equal"),
        Compared("b", 1.0, 1.0005, "within tolerance"),
        Compared("c", 1.0, 1.1, "different"),
        Compared("d", 1.0, None, "different"),
    ]
    assert overall(compare({"e": float("nan")}, {"e": float("nan")}, 0)) == "equal"
    assert overall(compare(then, {}, 1)) == "different"
    assert overall(compare({"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 1.0005}, 1e-3)) == "within tolerance"
    assert overall(compare({}, {"a": 1.0}, 0)) == "nothing to compare"
    assert overall(compare({"a": 1e-12}, {"a": 2e-12}, 1e-3)) == "different"


# The script

STUBS = {"python3.11": "mkdir -p $3/bin; : > $3/bin/activate", "pip": "", "orchestrator": ""}


def repository(folder: Path) -> str:
    """A repository with one file; returns its commit."""
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    folder.mkdir()
    (folder / "train.py").write_text("lr = 1\n")
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=folder, text=True).strip()


@pytest.fixture
def scripted(known: Recorded, settings: Settings, tmp_path: Path) -> Callable[..., tuple[Path, str, int]]:
    """A function that runs a record's script with stubs and returns its folder, the stubs' log and its exit code."""
    (tmp_path / "stubs").mkdir()
    for name, body in STUBS.items():
        (tmp_path / "stubs" / name).write_text(
            f'#!/bin/sh\necho "$(basename "$PWD"): {name} $@" >> {tmp_path}/said\n{body}\n'
        )
        (tmp_path / "stubs" / name).chmod(0o755)

    def run(**environment: Any) -> tuple[Path, str, int]:
        asked = {"python": "3.11.9", "packages": {"torch": "2.9.0+cu128"}, "variables": {"OMP_NUM_THREADS": "3 4"}}
        lines = commands(changed(replace(known, id="it's; 1"), **asked, **environment), settings)
        there = tmp_path / "there"
        there.mkdir()
        environ = {"PATH": f"{tmp_path / 'stubs'}:{os.environ['PATH']}"}
        done = subprocess.run(["sh"], input="\n".join(lines), text=True, cwd=there, env=environ, capture_output=True)
        said = (tmp_path / "said").read_text() if (tmp_path / "said").exists() else done.stderr
        return there / "reproduced-it-s--1", said, done.returncode

    return run


def test_script_restores_code_and_environment_and_repeats_the_run(
    scripted: Callable[..., tuple[Path, str, int]], known: Recorded, tmp_path: Path
) -> None:
    commit = repository(tmp_path / "a b.git")
    with (tmp_path / "a b.git" / "train.py").open("a") as file:
        file.write("lr = 2\n")
    difference = subprocess.check_output(["git", "diff"], cwd=tmp_path / "a b.git")
    (known.files / "source.diff").write_bytes(difference)
    source = {"name": "my project", "commit": commit, "url": str(tmp_path / "a b.git"), "diff": "source.diff"}
    folder, said, code = scripted(sources=[source | {"left_out": ["x\nexit 7"]}])
    assert code == DONE
    assert (folder / "my project" / "train.py").read_text() == "lr = 1\nlr = 2\n"
    assert said.splitlines() == [
        "reproduced-it-s--1: python3.11 -m venv environment",
        "reproduced-it-s--1: pip install torch==2.9.0",
        "my project: orchestrator reproduce run it's; 1",
    ]


def test_script_installs_the_recorded_orchestrator_checkout(
    scripted: Callable[..., tuple[Path, str, int]], tmp_path: Path
) -> None:
    commit = repository(tmp_path / "ours")
    source = {"name": "orchestrator", "commit": commit, "url": str(tmp_path / "ours"), "diff": None, "left_out": []}
    _, said, code = scripted(sources=[source])
    assert (code, said.splitlines()[1]) == (DONE, "reproduced-it-s--1: pip install torch==2.9.0 -e ./orchestrator")


def test_script_fails_without_a_clone_of_a_repository_without_url(
    scripted: Callable[..., tuple[Path, str, int]],
) -> None:
    source = {"name": "my project", "commit": "c0ffee", "url": None, "diff": None, "left_out": []}
    folder, said, code = scripted(sources=[source])
    assert code != DONE
    assert "CLONE_OF_MY_PROJECT: name a clone of the repository in this variable" in said
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("package", "place", "expected"),
    [
        (None, None, None),
        ({"name": "mine", "version": "1.2", "requirement": "mine==1.2"}, None, "pip install -- mine==1.2"),
        ({"name": "mine", "version": "1.2", "requirement": "mine==1.2"}, "in it", "pip install -e './project/in it'"),
        (
            {"name": "mine", "version": "1.2", "requirement": None},
            None,
            "# not recorded: where mine 1.2, the package of the workload, was installed from",
        ),
    ],
)
def test_script_installs_or_comments_the_package_of_an_external_workload(
    package: dict[str, Any] | None, place: str | None, expected: str | None, known: Recorded, settings: Settings
) -> None:
    source = {"name": "project", "url": None, "commit": None, "diff": None, "left_out": [], "package": place}
    lines = commands(changed(known, package=package, sources=[source]), settings)
    assert [line for line in lines if "project/" in line or "mine" in line] == ([expected] if expected else [])
    if expected:
        assert lines.index(expected) < lines.index("cd project")


def test_script_repeats_the_tracking_and_storage_options(known: Recorded, tmp_path: Path) -> None:
    settings = resolve({"storage": str(tmp_path / "my runs"), "tracking": "http://host:5000"})
    words = f"orchestrator reproduce run toy-1 --tracking=http://host:5000 '--storage={tmp_path}/my runs'"
    assert commands(known, settings)[-1] == words
