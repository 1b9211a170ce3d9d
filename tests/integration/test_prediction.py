"""A registered model in every way of use: files, pipes, Python, HTTP, and an environment of its own."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from orchestrator.cli import ui
from orchestrator.cli.ui import TRAINING_VIEW
from orchestrator.errors import UNAVAILABLE, USAGE, UserError
from orchestrator.promotion import aliases
from orchestrator.registry import prediction, tables
from orchestrator.storage.settings import Settings, resolve
from tests.support.commands import Store, typed
from tests.support.stores import copy_store
from tests.support.waiting import HANG_SECONDS, until

ROOT = Path(__file__).resolve().parents[2]
K = 3
USERS = np.array([5, 0, 599, 5, *range(1, 250)])
"""The ids to predict for: unsorted, one of them twice."""


@dataclass
class Registered:
    """The model of a real run, registered as ``rec`` with alias ``champion``, in a home that all tests here share."""

    home: Path
    files: Path

    def items(self, users: NDArray[np.int64], k: int = K) -> pd.DataFrame:
        """The k best unseen items by the definition, from the run's exported tables, one user at a time."""
        from safetensors.numpy import load_file

        weights = load_file(self.files / "weights.safetensors")
        bounds, seen = weights["seen_indptr"], weights["seen_items"]
        rows = []
        for user in users:
            scores = weights["users"][user].astype(np.float64) @ weights["items"].T.astype(np.float64)
            scores[seen[bounds[user] : bounds[user + 1]]] = -np.inf
            for rank, item in enumerate(np.argsort(-scores)[:k], 1):
                rows.append({"user": user, "rank": rank, "item": item, "score": scores[item], "fallback": False})
        return pd.DataFrame(rows)


def orchestrator(home: Path, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orchestrator", *words]
    environment = os.environ | {"ORCHESTRATOR_HOME": str(home)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, input=stdin)


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory, initialised_store: Path) -> Registered:
    home = tmp_path_factory.mktemp("registered")
    copy_store(initialised_store, home)
    done = typed(home, "run", "recommender", "epochs=2", "--local", "--register", "rec", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORCHESTRATOR_HOME", str(home))
        patch.setenv("MLFLOW_TRACKING_URI", "")
        aliases.promote(resolve(), aliases.Request("rec", "champion"))
    return Registered(home, home / "storage" / result["id"] / "model")


@pytest.fixture
def settings(registered: Registered, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(registered.home))
    return resolve()


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def write(frame: pd.DataFrame, path: Path) -> Path:
    """Write a file with pandas."""
    match path.suffix:
        case ".parquet":
            frame.to_parquet(path)
        case ".csv":
            frame.to_csv(path, index=False)
        case _:
            frame.to_json(path, orient="records", lines=True)
    return path


def read(path: Path) -> pd.DataFrame:
    match path.suffix:
        case ".parquet":
            return pd.read_parquet(path)
        case ".csv":
            return pd.read_csv(path)
        case _:
            return pd.read_json(path, lines=True)


def same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(found, expected, check_dtype=False, rtol=0, atol=1e-5)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_unknown_users_get_items_from_their_histories(
    ending: str, settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(pd.DataFrame({"history": [[3, 1, 4], [1, 5]]}), tmp_path / f"histories.{ending}")
    prediction.predict(settings, "rec@champion", str(source), str(tmp_path / "top.csv"), {"k": 4})
    answer = read(tmp_path / "top.csv")
    assert answer["user"].tolist() == [0] * 4 + [1] * 4
    assert not answer["fallback"].any()
    assert {3, 1, 4}.isdisjoint(answer["item"][:4])
    write(pd.DataFrame({"history": [[3], [10_000]]}), source)
    with pytest.raises(UserError, match="does not know item 10000 of the history in row 2"):
        prediction.predict(settings, "rec@champion", str(source), str(tmp_path / "top.csv"), {})


@pytest.mark.parametrize(("before", "after"), [("parquet", "csv"), ("csv", "jsonl"), ("jsonl", "parquet")])
def test_predict_reads_and_writes_every_format(
    before: str, after: str, registered: Registered, settings: Settings, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(tables, "BATCH_ROWS", 100)  # three batches, in the order of the input
    source = write(pd.DataFrame({"note": ["x"] * len(USERS), "user": USERS}), tmp_path / f"users.{before}")
    target = tmp_path / f"top.{after}"
    prediction.predict(settings, "rec@champion", str(source), str(target), {"k": str(K)})
    same(read(target), registered.items(USERS))
    assert capsys.readouterr().out == f"{len(USERS)} rows in, {len(USERS) * K} rows out: {target}\n"
    assert {path.name for path in tmp_path.iterdir()} - {"home"} == {source.name, target.name}


@pytest.mark.parametrize("text", ["user\n7\n8\n", '{"user": 7}\n\n{"user": 8}\n'], ids=["csv", "json"])
def test_format_of_standard_input_is_detected(
    text: str, registered: Registered, settings: Settings, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(text.encode()))))
    prediction.predict(settings, "rec/1", "-", None, {"k": K})
    found = pd.DataFrame(map(json.loads, capsys.readouterr().out.splitlines()))
    same(found, registered.items(np.array([7, 8])))


def test_predict_in_a_pipe_writes_only_answers_to_standard_output(registered: Registered) -> None:
    """``cat users.csv | orchestrator predict rec --input -``: standard output has only the answers."""
    done = orchestrator(registered.home, "predict", "rec", "k=1", "--input", "-", stdin="user\n599\n0\n")
    assert done.returncode == 0, done.stderr
    same(pd.DataFrame(map(json.loads, done.stdout.splitlines())), registered.items(np.array([599, 0]), 1))


def test_rows_stream_through_in_bounded_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "BATCH_ROWS", 4)
    for name in ("users.parquet", "users.csv", "users.jsonl"):
        source = write(pd.DataFrame({"user": range(10)}), tmp_path / name)
        frames = [frame["user"].tolist() for frame in tables.frames(str(source), name, None)]
        assert frames == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("after", ["parquet", "csv"])
@pytest.mark.parametrize("before", ["parquet", "csv", "jsonl"])
def test_an_empty_input_gives_an_empty_output_with_its_columns(
    before: str, after: str, registered: Registered, settings: Settings, tmp_path: Path
) -> None:
    source = write(pd.DataFrame({"user": np.array([], np.int64)}), tmp_path / f"none.{before}")
    target = tmp_path / f"top.{after}"
    prediction.predict(settings, "rec", str(source), str(target), {})
    found = read(target)
    assert list(found.columns) == list(registered.items(np.array([1])).columns)
    assert len(found) == 0
    if after == "parquet":
        assert [str(kind) for kind in found.dtypes] == ["int64", "int64", "int64", "float32", "bool"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "users,age\n1,2\n", "has no column of the model: got users, age; allowed: user, history"),
        ("a.jsonl", '{"User": 1}\n', "has no column of the model: got User; allowed: user, history"),
        ("a.csv", "user\n1\n2\nx\n", "Column user of .*a.csv is wrong in row 3: got 'x'; allowed: a whole number"),
        ("a.csv", "user,b\n1,2\n,3\n", "Column user of .*a.csv is wrong in row 2: got nothing; allowed: a whole"),
        ("a.jsonl", '{"user": 1}\n{"user": 1.5}\n', "wrong in row 2: got 1.5; allowed: a whole number"),
        ("a.jsonl", '{"user": 1}\n{"user": 36893488147419103232}\n', "wrong in row 2: got 36893488147419103232"),
        ("a.jsonl", '{"user": 1}\n\n{"user": 2\n', r'Line 3 of .*a.jsonl is not a JSON object: got \{"user": 2'),
        ("a.jsonl", "[1, 2]\n", r"Line 1 of .*a.jsonl is not a JSON object: got \[1, 2\]"),
        ("a.csv", "user\n1\n2,3\n", "a.csv cannot be read: .* line 3"),
        ("a.parquet", "PAR0", "a.parquet cannot be read"),
        ("a.txt", "user\n1\n", r"The input .*a.txt has no known format; allowed: NAME.parquet, NAME.csv, NAME.jsonl"),
    ],
)  # fmt: skip
def test_wrong_input_raises_user_error_and_keeps_the_old_output(
    name: str, text: str, message: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "BATCH_ROWS", 2)  # row numbers continue over the batches
    source, target = tmp_path / name, tmp_path / "out.csv"
    source.write_text(text)
    target.write_text("of yesterday")
    with pytest.raises(UserError, match=message) as caught:
        prediction.predict(settings, "rec", str(source), str(target), {})
    assert caught.value.code == USAGE
    assert "\n" not in str(caught.value)
    assert target.read_text() == "of yesterday"  # no partial output is left
    assert {path.name for path in tmp_path.iterdir()} - {"home"} == {name, "out.csv"}


@pytest.mark.parametrize(
    ("model", "params", "message"),
    [
        ("rec", {"kk": "1"}, "Unknown parameter of rec: got 'kk'; allowed: exclude_seen, k, unknown. Did you mean 'k'"),
        ("rec", {"k": "ten"}, "Parameter k of rec is not valid: got 'ten'; allowed: a whole number"),
        ("rec", {"exclude_seen": "perhaps"}, "Parameter exclude_seen of rec is not valid: got 'perhaps'"),
        ("rec", {"k": "0"}, "rec refuses rows 1 to 2: k must be at least 1, got 0"),
        ("rec", {"unknown": "error"}, "rec refuses rows 1 to 2: the model, .* does not know user 100000"),
        ("rec@champoin", {}, "Unknown alias of rec: got 'champoin'; allowed: champion. Did you mean 'champion'"),
        ("recc", {}, "Unknown registered model: got 'recc'; allowed: rec. Did you mean 'rec'"),
        ("rec/2", {}, "Unknown version of rec: got '2'; allowed: 1"),
        ("models:/nothing/1", {}, "The model models:/nothing/1 cannot be loaded: .*nothing not found"),
    ],
)  # fmt: skip
def test_wrong_model_or_parameter_raises_user_error(
    model: str, params: dict[str, str], message: str, settings: Settings, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    source = write(pd.DataFrame({"user": [1, 100000]}), tmp_path / "users.csv")
    with pytest.raises(UserError, match=message) as caught:
        prediction.predict(settings, model, str(source), None, params)
    assert caught.value.code == USAGE
    assert capsys.readouterr().out == ""


def test_unknown_users_get_the_popular_items_flagged(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(pd.DataFrame({"user": [100000, 1]}), tmp_path / "users.csv")
    prediction.predict(settings, "rec", str(source), None, {"k": "1", "unknown": "popular"})
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["user"], row["fallback"]) for row in rows] == [(100000, True), (1, False)]


def test_missing_input_or_output_folder_raises_user_error(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"The input .*none.csv does not exist"):
        prediction.predict(settings, "rec", str(tmp_path / "none.csv"), None, {})
    source = write(pd.DataFrame({"user": [1]}), tmp_path / "users.csv")
    with pytest.raises(UserError, match=r"The folder of the output .* does not exist"):
        prediction.predict(settings, "rec", str(source), str(tmp_path / "no" / "out.csv"), {})


def test_model_loaded_by_mlflow_matches_the_reference(registered: Registered, settings: Settings) -> None:
    import mlflow

    mlflow.set_tracking_uri(settings.tracking)
    loaded = mlflow.pyfunc.load_model("models:/rec@champion")
    found = loaded.predict(pd.DataFrame({"user": USERS}), params={"k": K})
    same(found, registered.items(USERS))
    assert set(loaded.input_example.columns) == {"user"}


def test_model_served_over_http_matches_the_reference(registered: Registered, settings: Settings, port: int) -> None:
    words = ["models", "serve", "-m", "models:/rec@champion", "--env-manager", "local", "--port", str(port), "-w", "1"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # MLflow calls uvicorn by name
    environment = os.environ | {"MLFLOW_TRACKING_URI": str(settings.tracking), "PATH": path}
    server = subprocess.Popen(
        [sys.executable, "-m", "mlflow", *words], env=environment, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def answers() -> bool:
        assert server.poll() is None, "the server ended"
        return ask(f"http://127.0.0.1:{port}/ping") is not None

    try:
        until(answers, pause=0.1)
        body = {"dataframe_split": {"columns": ["user"], "data": [[7], [599]]}, "params": {"k": K}}
        answer = ask(f"http://127.0.0.1:{port}/invocations", body)
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(HANG_SECONDS)
    assert answer is not None
    same(pd.DataFrame(json.loads(answer)["predictions"]), registered.items(np.array([7, 599])))


@pytest.mark.faults
@pytest.mark.long
def test_model_predicts_with_only_its_listed_requirements(registered: Registered, settings: Settings) -> None:
    """The environment has only the model's listed requirements. It is created once and kept in ``.cache/``."""
    import mlflow

    mlflow.set_tracking_uri(settings.tracking)
    listed = Path(mlflow.artifacts.download_artifacts("models:/rec@champion/requirements.txt"))
    python = environment_of(listed)
    code = f"""if True:
        import importlib.util, json, sys
        found = [name for name in ("orchestrator", "workloads", "torch", "ray") if importlib.util.find_spec(name)]
        assert not found, found
        import mlflow, pandas
        loaded = mlflow.pyfunc.load_model("models:/rec@champion")
        answer = loaded.predict(pandas.DataFrame({{"user": {USERS.tolist()}}}), params={{"k": {K}}})
        print(answer.to_json(orient="records", double_precision=15))
    """
    variables = {"MLFLOW_TRACKING_URI": str(settings.tracking), "PATH": os.environ["PATH"], "HOME": str(settings.home)}
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 0, done.stderr
    same(pd.DataFrame(json.loads(done.stdout)), registered.items(USERS))


def environment_of(requirements: Path) -> Path:
    """The Python of a virtual environment with these requirements, in the repository's cache."""
    text = f"{sys.version}\n{requirements.read_text()}"
    folder = ROOT / ".cache" / "models" / hashlib.sha256(text.encode()).hexdigest()[:16]
    ready = folder / "ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "-r", str(requirements)]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        ready.touch()
    return folder / "bin" / "python"


def test_mlflow_has_names_descriptions_and_metrics_of_run_and_model(registered: Registered) -> None:
    store = Store(registered.home)
    (name,) = next(row for row in store.query("select name from runs") if "promote" not in row[0])
    assert name.startswith("epochs=2 (")
    (note,) = store.tag("mlflow.note.content")
    assert note.startswith("Run of `recommender`: `epochs=2`.")
    assert "| ndcg_at_20 | 0." in note
    assert "orchestrator promote rec --to champion" in note
    assert store.query("select name from logged_models") == [("recommender-mf",)]
    assert store.query("select param_value from logged_model_params where param_key = 'backbone'") == [("mf",)]
    (of_model,) = store.query(
        "select metric_value, metric_step from logged_model_metrics where metric_name = 'test/auc'"
    )
    assert store.query("select value, step from metrics where key = 'test/auc'") == [of_model]
    ((about,),) = store.query("select description from model_versions")
    assert about.startswith("Test: ndcg_at_20 0.")
    tags = {key for (key,) in store.query("select key from model_version_tags")}
    assert tags == {"orchestrator.epoch", "orchestrator.promotion", "orchestrator.promotion.event"}


def test_the_ui_shows_the_embedded_store_until_ctrl_c(registered: Registered, port: int) -> None:
    command = [sys.executable, "-m", "orchestrator", "ui", "--port", str(port)]
    environment = os.environ | {"ORCHESTRATOR_HOME": str(registered.home)}
    started = subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    assert started.stdout is not None
    assert started.stdout.readline() == f"MLflow UI: {address}{TRAINING_VIEW}  (Ctrl-C stops it)\n"
    answer = ask(f"{address}/api/2.0/mlflow/registered-models/get?name=rec")
    assert answer is not None
    assert json.loads(answer)["registered_model"]["aliases"] == [{"alias": "champion", "version": "1"}]
    os.killpg(started.pid, signal.SIGINT)
    _, errors = started.communicate(timeout=HANG_SECONDS)
    assert (started.returncode, "Traceback" in errors) == (0, False)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 1)
    assert list(Path.cwd().glob("ml*")) == []  # no store among the user's files


def test_ui_on_a_port_in_use_raises_user_error(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(UserError, match=f"Port {port} of 127.0.0.1 .*already in use.*--port") as caught:
            ui.serve(settings, "127.0.0.1", port)
    assert caught.value.code == UNAVAILABLE


def test_ui_prints_the_address_of_a_tracking_server(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("USERNAME", "PASSWORD"):  # the variables that receive the login of an address
        monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", "before")
    ui.serve(resolve({"tracking": "http://me:pw@host:5000"}), "127.0.0.1", 5000)
    assert capsys.readouterr().out == "http://host:5000\n"
    with pytest.raises(UserError, match="tracking off"):
        ui.serve(resolve({"tracking": "none"}), "127.0.0.1", 5000)


def ask(url: str, body: Any = None) -> bytes | None:
    """The answer to a GET, or to a POST of JSON; None if there is none."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=HANG_SECONDS) as answer:
            found: bytes = answer.read()
            return found
    except OSError:
        return None
