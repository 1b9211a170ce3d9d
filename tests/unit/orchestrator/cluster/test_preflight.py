"""Checks before a worker starts: names, data, batches, the machine's size, storage and tracking servers."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from orchestrator.cluster import connection as cluster
from orchestrator.cluster import preflight
from orchestrator.config import workload_loader
from orchestrator.config.parsing import validate_part
from orchestrator.config.plan import Plan
from orchestrator.config.spec import Resources
from orchestrator.errors import UNAVAILABLE, UserError
from orchestrator.storage.settings import resolve
from orchestrator.sweeps import request
from tests.support.pictures import class_folders
from tests.support.refusals import refused
from tests.support.waiting import FOR_EVER
from tests.support.web import QuietHandler, serving
from workloads import catalog
from workloads.contract import RESERVED
from workloads.data import datasets, fingerprint
from workloads.data.errors import DataUnreachable


class Taken(BaseModel):
    """Parameters with the names of settings: ``epochs`` is a key of the plan, and ``seed`` an option."""

    epochs: int = 3
    seed: int = 0
    lr: float = 0.1


class Contradicted(BaseModel):
    lr: float = Field(0, gt=0)  # a default is not checked when the parameters are built


# Names and parameters


def test_error_of_an_unknown_workload_suggests_the_nearest_name() -> None:
    refused(
        lambda: workload_loader.entry("recomender"), "Unknown workload: got 'recomender'", "Did you mean 'recommender'?"
    )


def test_parameters_come_complete_and_as_plain_values() -> None:
    found = preflight.parameters("recommender", {"lr": "0.25", "backbone": "lightgcn", "layers": "3"})
    assert (found["lr"], found["layers"], found["dataset"]) == (0.25, 3, "synthetic")
    assert all(value is None or isinstance(value, str | int | float) for value in found.values())


def test_contradictory_parameters_are_refused() -> None:
    refused(lambda: preflight.parameters("recommender", {"layers": 2}), "layers=2 has no effect with backbone=mf")


def test_a_default_that_is_not_valid_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = catalog.Entry(f"{__name__}:Contradicted", "tests.support.toy:Toy", "Its default is out of bounds.")
    monkeypatch.setitem(catalog.BUILT_IN, "contradicted", entry)
    refused(lambda: preflight.parameters("contradicted", {}), "Parameter lr is not valid: got 0", "greater than 0")
    assert preflight.parameters("contradicted", {"lr": "0.5"}) == {"lr": 0.5}


def test_an_entry_without_a_predictor_can_be_trained_but_not_registered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entry = catalog.Entry("tests.support.toy:Params", "tests.support.toy:Toy", "Is not served.", predictor=None)
    monkeypatch.setitem(catalog.BUILT_IN, "unserved", entry)
    settings = resolve({"tracking": "none"})
    preflight.services(settings, Resources(), ray=False, workload="unserved")
    call = partial(preflight.services, settings, Resources(), ray=False, workload="unserved", register="x")
    refused(call, "A model of this workload cannot be registered: it has no class Predictor")
    monkeypatch.setitem(catalog.BUILT_IN, "unserved", replace(entry, predictor="none.py"))
    refused(call, "none.py cannot be read", "predictor=None: no model is served")


def test_a_parameter_may_not_have_the_name_of_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = catalog.Entry(f"{__name__}:Taken", "tests.support.toy:Toy", "Trains as long as it likes.")
    monkeypatch.setitem(catalog.BUILT_IN, "taken", taken)
    words = ("The workload taken cannot be run", "got epochs, seed.", "Rename them in")
    refused(lambda: preflight.parameters("taken", {"epochs": "7"}), *words)
    refused(lambda: request.experiment("taken", resolve(), overrides={"epochs": "7"}), *words)


def test_reserved_names_match_plan_resources_seed_and_workload() -> None:
    assert set(RESERVED) == {*Plan.model_fields, *Resources.model_fields, "seed", "workload"}


# Data


def test_dataset_is_checked_only_for_workloads_that_declare_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = catalog.Entry("tests.support.toy:Params", "tests.support.toy:Toy", "Brings its data along.")
    monkeypatch.setitem(catalog.BUILT_IN, "own", own)
    monkeypatch.setitem(catalog.BUILT_IN, "ours", replace(own, data=("images",)))
    assert preflight.dataset("own", {"dataset": "mydata"}, tmp_path) is None
    refused(lambda: preflight.dataset("ours", {"dataset": "mydata"}, tmp_path), "Unknown dataset: got 'mydata'")
    message = "dataset 'synthetic' holds another kind of data: got interactions; expected images"
    refused(lambda: preflight.dataset("ours", {"dataset": "synthetic"}, tmp_path), message)


def test_dataset_check_returns_the_fingerprint_of_the_dataset(tmp_path: Path) -> None:
    found = preflight.dataset("recommender", {"dataset": "synthetic"}, tmp_path)
    assert found is not None
    assert len(found) == 64
    assert preflight.dataset("recommender", {"lr": 1}, tmp_path) is None


def test_error_of_an_unknown_dataset_suggests_the_nearest_name(tmp_path: Path) -> None:
    words = ("Unknown dataset", "'synthtic'", "'synthetic'?")
    refused(lambda: preflight.dataset("recommender", {"dataset": "synthtic"}, tmp_path), *words)


@pytest.mark.parametrize(
    ("workload", "name", "holds", "expected"),
    [
        ("simclr", "ml-100k", "interactions", "images: synthetic-images, cifar-10"),
        ("recommender", "cifar-10", "images", "interactions: synthetic, ml-100k"),
        ("bi_encoder", "scifact", "retrieval", "sentence_pairs: synthetic-pairs, stsb"),
        ("text_ranker", "stsb", "sentence_pairs", "retrieval: synthetic-retrieval, scifact"),
    ],
)
def test_dataset_of_another_kind_of_data_is_refused(workload: str, name: str, holds: str, expected: str) -> None:
    message = f"dataset {name!r} holds another kind of data: got {holds}; expected {expected}"
    refused(lambda: preflight.parameters(workload, {"dataset": name}), message)
    fields = workload_loader.params(workload)
    refused(lambda: validate_part(fields, {"dataset": name}, "parameter"), "Parameter dataset is not valid", message)


def test_data_files_of_another_kind_of_data_are_refused(tmp_path: Path) -> None:
    class_folders(tmp_path / "photos", {"a": 2, "b": 2})
    (tmp_path / "rows.csv").write_text("user,item\n1,2\n")
    for workload, name, holds in (("recommender", "photos", "images"), ("simclr", "rows.csv", "interactions")):
        own = {"dataset": str(tmp_path / name)}
        refused(lambda own=own, to=workload: preflight.parameters(to, own), f"got {holds}; expected")
    for workload, name in (("simclr", "photos"), ("recommender", "rows.csv"), ("simclr", "nowhere.parquet")):
        own = {"dataset": str(tmp_path / name)}
        assert preflight.parameters(workload, own)["dataset"] == own["dataset"]


def test_a_driver_whose_workers_are_elsewhere_decodes_no_images(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    class_folders(photos, {"a": 4, "b": 4})
    (photos / "a" / "0.png").write_bytes(b"not an image")
    params = {"dataset": str(photos), "dataset_size": 8, "dataset_corrupt": "refuse"}
    whole = preflight.dataset("simclr", params, tmp_path, elsewhere=True)
    assert whole == fingerprint(str(photos), tmp_path)
    preflight.data("simclr", params, tmp_path, elsewhere=True)
    with pytest.raises(UserError, match="an image cannot be decoded"):
        preflight.dataset("simclr", params, tmp_path)
    with pytest.raises(UserError, match="is missing"):
        preflight.dataset("simclr", {"dataset": "cifar-10"}, tmp_path, elsewhere=True)


def test_a_driver_whose_workers_are_elsewhere_reads_no_large_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("user,item\n1,2\n1,none\n,3\n")
    params = {"dataset": str(table), "backbone": "lightgcn", "contrast": "ncl"}
    with pytest.raises(UserError, match=r"rows.csv"):
        preflight.dataset("recommender", params, tmp_path, elsewhere=True)  # a small table is read in any case
    monkeypatch.setattr(datasets, "LARGE_BYTES", table.stat().st_size)
    whole = preflight.dataset("recommender", params, tmp_path, elsewhere=True)
    assert whole == preflight.fingerprint("recommender", params, tmp_path) == fingerprint(str(table), tmp_path)
    preflight.data("recommender", params, tmp_path, elsewhere=True)
    for refused_by in (preflight.dataset, preflight.data):
        with pytest.raises(UserError, match=r"rows.csv"):
            refused_by("recommender", params, tmp_path)


@pytest.mark.parametrize(
    ("address", "local", "elsewhere"), [("ray:1", False, True), ("ray:1", True, False), (None, False, False)]
)
def test_elsewhere_is_set_only_for_a_cluster_with_an_address(
    address: str | None, local: bool, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []
    monkeypatch.setattr(preflight, "dataset", lambda *args, elsewhere: called.append(elsewhere) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        request.experiment("recommender", resolve({"ray_address": address}), local=local)
    assert called == [elsewhere]


def test_error_of_a_missing_dataset_names_the_searched_folder(tmp_path: Path) -> None:
    words = ("100k_train.csv", "missing", "orchestrator data fetch ml-100k", "ORCHESTRATOR_DATA", str(tmp_path))
    refused(lambda: preflight.dataset("recommender", {"dataset": "ml-100k"}, tmp_path), *words)


# Batches


@given(size=st.integers(1, 5000), workers=st.integers(1, 16), accumulate=st.integers(1, 8))
def test_indivisible_batch_size_is_refused_with_the_nearest_valid_one(size: int, workers: int, accumulate: int) -> None:
    parts = workers * accumulate

    def check(batch_size: int) -> None:
        preflight.batch({"batch_size": batch_size}, Resources(workers=workers), Plan(accumulate=accumulate))

    if size % parts == 0:
        check(size)
        return
    nearest = min((n for n in range(1, size + parts + 1) if n % parts == 0), key=lambda n: abs(n - size))
    refused(lambda: check(size), f"got {size}; allowed: a multiple of {parts}", f"Use batch_size={nearest}")
    check(nearest)


@pytest.mark.parametrize(("least", "most", "fits"), [(1, 3, 2), (3, 3, 1), (3, 5, 4)])
def test_error_of_a_resume_names_workers_that_divide_the_batch(least: int, most: int, fits: int) -> None:
    def check(least: int, most: int) -> None:
        resources = Resources(workers=most, min_workers=least if least < most else None)
        preflight.batch({"batch_size": 1024}, resources, Plan(), resuming=True)

    refused(lambda: check(least, most), f"do not divide it: got 1024. Use --workers {fits}.")
    check(fits, fits)


def test_check_data_of_the_parameters_can_refuse_the_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def check_data(_self: Any, root: Path, holdout: bool) -> None:
        asked.append((root, holdout))
        if holdout:
            raise ValueError("batch_size=64 is more than the 60 there are")

    monkeypatch.setattr(workload_loader.params("recommender"), "check_data", check_data)
    refused(lambda: preflight.data("recommender", {}, tmp_path), "batch_size=64 is more than the 60 there are")
    preflight.data("recommender", {}, tmp_path, "only")
    assert asked == [(tmp_path, True), (tmp_path, False)]


def test_batch_check_passes_for_a_workload_without_batch_size() -> None:
    preflight.batch({}, Resources(workers=3), Plan())


# The machine


@pytest.mark.parametrize(
    ("visible", "gpus"), [(None, 2), ("1", 1), ("0,1", 2), ("0,1,2", 2), ("", 0), ("-1", 0), ("NoDevFiles", 0)]
)
def test_gpus_hidden_by_cuda_visible_devices_are_not_counted(
    visible: str | None, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.Path, "glob", lambda path, pattern: iter(["/dev/nvidia0", "/dev/nvidia1"]))
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert cluster.this_machine()[0]["GPU"] == gpus


def machine(monkeypatch: pytest.MonkeyPatch, cpus: float, gpus: float) -> None:
    monkeypatch.setattr(preflight, "this_machine", lambda: [{"CPU": cpus, "GPU": gpus}])


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"workers": 5}, ("got 5 worker(s) of 1 CPU each", "4 CPU, 1 GPU")),
        ({"cpus_per_worker": 4.5}, ("got 1 worker(s) of 4.5 CPU each",)),
        ({"gpus_per_worker": 2}, ("got 1 worker(s) of 1 CPU + 2 GPU each", "--gpus-per-worker")),
        ({"workers": 2, "gpus_per_worker": 1}, ("got 2 worker(s) of 1 CPU + 1 GPU each",)),
    ],
)
def test_request_larger_than_the_machine_is_refused(
    asked: dict[str, Any], words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, 4, 1)
    settings = resolve({"tracking": "none"})
    refused(
        lambda: preflight.services(settings, Resources(**asked), ray=True),
        "This machine is too small", "allowed: what it has: ", *words, code=UNAVAILABLE,
    )  # fmt: skip


@pytest.mark.parametrize(
    "asked", [{"workers": 4}, {"cpus_per_worker": 4}, {"gpus_per_worker": 0.5, "cpus_per_worker": 2}]
)
def test_request_within_the_machine_is_accepted(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 4, 1)
    preflight.services(resolve({"tracking": "none"}), Resources(**asked), ray=True)


@pytest.mark.parametrize(
    ("nodes", "asked", "expected"),
    [
        ([(4, 1)], {"gpus_per_worker": 0.25}, 4),
        ([(4, 1)], {"gpus_per_worker": 0.3}, 3),
        ([(4, 2)], {"gpus_per_worker": 0.4}, 4),  # not 5: a fraction is of one device
        ([(1, 1), (1, 1)], {"gpus_per_worker": 0.1}, 2),  # the CPUs are the limit
        ([(3, 0), (3, 0)], {"cpus_per_worker": 2}, 2),  # not 3: no worker spans two nodes
        ([(3, 0), (3, 0)], {"workers": 4}, 1),  # but a group of workers may span them
        ([(0, 0)], {}, 0),
        ([], {}, 0),
    ],
)
def test_slots_are_counted_node_by_node(nodes: list[tuple[float, float]], asked: dict[str, Any], expected: int) -> None:
    available = [{"CPU": float(cpus), "GPU": float(gpus)} for cpus, gpus in nodes]
    assert cluster.slots(available, Resources(**asked)) == expected


def test_remote_cluster_is_not_limited_by_the_size_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 1, 0)
    monkeypatch.setattr(preflight, "check_is_ray", lambda address: None)
    large = Resources(cpus_per_worker=64)
    with listener(None) as port:
        settings = resolve({"tracking": "none", "ray_address": f"127.0.0.1:{port}"})
        preflight.services(settings, large, ray=True)
        refused(lambda: preflight.services(settings, large, ray=False), "too small", code=UNAVAILABLE)


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9", "127.0.0.1:port", "nowhere.invalid:6379"])
def test_unreachable_ray_cluster_is_refused(address: str) -> None:
    settings = resolve({"tracking": "none", "ray_address": address})
    words = (f"No Ray answers at {address} (", "ray start --head", "--ray-address")
    refused(lambda: preflight.services(settings, Resources(), ray=True), *words, code=UNAVAILABLE)
    preflight.services(settings, Resources(), ray=False)


def test_sigterm_to_the_probe_of_ray_raises_keyboard_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """When Ray stops a job, it signals each process of the job."""
    monkeypatch.setattr(cluster, "RAY_PROBE", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    with pytest.raises(KeyboardInterrupt):
        cluster.check_is_ray("127.0.0.1:9")


# Storage and tracking


@pytest.mark.parametrize("setting", ["storage", "tracking"])
def test_storage_or_tracking_store_below_a_file_is_refused(setting: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    places = {"storage": f"{tmp_path}/file/runs", "tracking": f"sqlite:///{tmp_path}/file/mlflow.db"}
    settings = resolve({"tracking": "none", setting: places[setting]})
    refused(
        lambda: preflight.services(settings, Resources(), ray=False),
        f"{tmp_path}/file is a file, not a folder. Choose another with --{setting}.", code=UNAVAILABLE,
    )  # fmt: skip


class Server(QuietHandler):
    status = 200
    seen: ClassVar[list[tuple[str, str | None]]] = []

    def post(self) -> None:
        type(self).seen.append((self.path, self.headers["Authorization"]))
        self.respond(self.status, b"Invalid Host header" if self.status == 403 else b"{}")


def answers(status: int) -> type[Server]:
    return type("Handler", (Server,), {"status": status, "seen": []})


def check(uri: str) -> None:
    preflight.tracking(resolve({"tracking": uri}))


def test_tracking_check_sends_the_configured_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = answers(200)
    with serving(handler) as uri:
        check(f"{uri}/")
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "token")
        check(uri)
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")  # a username precedes a token, as in MLflow's client
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
        check(uri)
        check(uri.replace("http://", "http://you:p%40ss@"))
        path, pair = "/api/2.0/mlflow/experiments/search", "Basic eW91OnBAc3M="
        assert handler.seen == [(path, None), (path, "Bearer token"), (path, "Basic bWU6c2VjcmV0"), (path, pair)]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, ("HTTP 401", "MLFLOW_TRACKING_TOKEN")),
        (403, ("HTTP 403 Invalid Host header", "--allowed-hosts")),
        (404, ("HTTP 404", "Check the address")),
        (500, ("HTTP 500", "Check the address and the server's log")),
    ],
)
def test_http_error_of_a_tracking_server_is_reported(status: int, words: tuple[str, ...]) -> None:
    with serving(answers(status)) as uri:
        refused(lambda: check(uri), f"MLflow at {uri} refuses", *words, code=UNAVAILABLE)


class Experiments(QuietHandler):
    """A server with a login and one experiment; ``may_write`` is whether the user may set its tags."""

    may_write = True
    seen: ClassVar[list[str | None]] = []

    stage = "active"

    def get(self) -> None:
        self._say(200, json.dumps({"experiment": {"experiment_id": "7", "lifecycle_stage": self.stage}}).encode())

    def post(self) -> None:
        self._say(403 if self.path.endswith("set-experiment-tag") and not self.may_write else 200, b"{}")

    def _say(self, status: int, text: bytes) -> None:
        type(self).seen.append(self.headers["Authorization"])
        self.respond(status, text)


@pytest.mark.parametrize("may_write", [True, False])
def test_experiment_without_write_permission_is_refused_before_training(
    may_write: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    handler = type("Handler", (Experiments,), {"may_write": may_write, "seen": []})
    with serving(handler) as uri:
        settings = resolve({"tracking": uri, "storage": str(tmp_path)})

        def begin() -> None:
            preflight.services(settings, Resources(), ray=False, workload="recommender")

        if may_write:
            begin()
        else:
            words = "me may not write to the experiment 'recommender'", "MLFLOW_EXPERIMENT_NAME", "EDIT"
            refused(begin, *words, code=UNAVAILABLE)
        assert handler.seen == ["Basic bWU6c2VjcmV0"] * 3


@contextmanager
def listener(answer: bytes | None) -> Iterator[int]:
    """A port where a service without HTTP sends ``answer``; with None it never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                if answer is None:
                    time.sleep(FOR_EVER)
                connection.recv(4096)
                connection.sendall(answer or b"")

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 nonsense\r\n\r\n"])
def test_tracking_address_of_another_service_is_refused(answer: bytes) -> None:
    with listener(answer) as port:
        uri = f"http://127.0.0.1:{port}"
        refused(lambda: check(uri), f"No MLflow answers at {uri} (", "MLFLOW_TRACKING_URI", code=UNAVAILABLE)


def test_tracking_address_without_a_server_is_refused() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{unused.getsockname()[1]}"
    refused(lambda: check(uri), f"No MLflow answers at {uri}", "refused", code=UNAVAILABLE)


@pytest.mark.parametrize("uri", ["http://127.0.0.1:port", "http://", "http://[::1", "http://no such host"])
def test_malformed_tracking_address_is_refused(uri: str) -> None:
    refused(lambda: check(uri), f"No MLflow answers at {uri.rstrip('/')}", code=UNAVAILABLE)


def test_silent_tracking_server_is_refused_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    assert preflight.SERVER_SECONDS <= 5
    monkeypatch.setattr(preflight, "SERVER_SECONDS", 0.3)
    with listener(None) as port:
        refused(lambda: check(f"http://127.0.0.1:{port}"), "timed out", code=UNAVAILABLE)


def test_disabled_tracking_passes_the_check() -> None:
    check("none")


def test_model_larger_than_the_free_memory_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "free_bytes", lambda: 20 * 123**2 + 1)
    settings = resolve({"tracking": "none"})
    ease = {"backbone": "ease", "epochs": 1}
    one = lambda **more: request.experiment("recommender", settings, overrides={**ease, **more}, local=True)  # noqa: E731
    refused(one, "it takes 123 items", "Set backbone=item_knn")
    sweep = lambda: request.sweep("recommender", settings, search={"space": "ease"}, local=True)  # noqa: E731
    refused(sweep, "it takes 123 items")
    assert one(backbone="item_knn").params["backbone"] == "item_knn"
    ncl = {"backbone": "lightgcn", "contrast": "ncl", "clusters": 500}
    refused(lambda: request.experiment("recommender", settings, overrides=ncl, local=True), "clusters=500 is more than")


def test_input_file_of_an_object_store_is_fetched_before_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "weights.pt"
    model = SimpleNamespace(input_files=lambda params: {"encoder_weights": copy})
    monkeypatch.setattr(preflight.workload_loader, "params", lambda name: model)
    monkeypatch.setattr("workloads.data.stores.stage", lambda path: path.write_bytes(b"weights"))
    assert preflight.input_files("any", {})["encoder_weights"]
    copy.unlink()

    def unreachable(path: Path) -> None:
        raise DataUnreachable("the store does not answer")

    monkeypatch.setattr("workloads.data.stores.stage", unreachable)
    with pytest.raises(UserError, match="the store does not answer"):
        preflight.input_files("any", {})


def test_a_deleted_experiment_is_refused_before_training(tmp_path: Path) -> None:
    with serving(type("Handler", (Experiments,), {"stage": "deleted", "seen": []})) as uri:
        settings = resolve({"tracking": uri, "storage": str(tmp_path)})
        words = "The experiment 'recommender'", "was deleted", "restore --experiment-id 7"
        begin = lambda: preflight.services(settings, Resources(), ray=False, workload="recommender")  # noqa: E731
        refused(begin, *words, code=UNAVAILABLE)


def test_patience_is_refused_if_metrics_change_only_at_the_session_end() -> None:
    with pytest.raises(UserError, match=r"metrics change at the end of a session only.*got patience=2"):
        preflight.limits("lifelong", {}, Resources(), Plan(epochs=10, patience=2))
    preflight.limits("lifelong", {}, Resources(), Plan(epochs=10))
