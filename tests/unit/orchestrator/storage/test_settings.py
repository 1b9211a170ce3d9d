"""Settings: flag before environment before file before default, with the source of each value."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.errors import USAGE, UserError
from orchestrator.storage.settings import NAMES, resolve, sqlite_file


def configure(home: Path, text: str) -> None:
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text(text)


def test_default_storage_and_tracking_file_lie_below_the_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORCHESTRATOR_DATA", raising=False)
    found = resolve()
    assert (found.home, found.storage) == (home, home / "storage")
    assert found.tracking == f"sqlite:///{home}/mlflow.db"
    assert found.embedded
    assert found.data == home.parent / "cache" / "data"
    assert (found.experiment, found.ray_address) == (None, None)
    assert found.sources == dict.fromkeys(NAMES, "default") | {"home": "environment"}


def test_default_home_is_below_the_home_folder_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ORCHESTRATOR_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve().home == tmp_path / ".orchestrator"


def test_missing_home_folder_of_the_user_raises_user_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    for name in ("ORCHESTRATOR_DATA", "ORCHESTRATOR_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=r"the cache has no place.*Set ORCHESTRATOR_CACHE"):
        resolve()
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(home / "cache"))
    assert resolve({"home": str(home)}).data == home / "cache" / "data"
    monkeypatch.delenv("ORCHESTRATOR_HOME")
    with pytest.raises(UserError, match=r"no home folder: got ~/.orchestrator.* Set ORCHESTRATOR_HOME"):
        resolve()


def test_flag_overrides_environment_overrides_file_overrides_default(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(home, "storage: /from/file\nexperiment: from-file\nray_address: from-file:1\n")
    monkeypatch.setenv("ORCHESTRATOR_STORAGE", "/from/environment")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "from-environment")
    found = resolve({"storage": "/from/flag", "experiment": None})
    assert (str(found.storage), found.experiment, found.ray_address) == (
        "/from/flag",
        "from-environment",
        "from-file:1",
    )
    picked = {name: found.sources[name] for name in ("storage", "experiment", "ray_address", "tracking")}
    assert picked == {"storage": "flag", "experiment": "environment", "ray_address": "file", "tracking": "default"}


def test_empty_environment_variable_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "")
    assert resolve().ray_address is None


def test_queue_and_priority_are_resolved_and_invalid_ones_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (resolve().queue, resolve().priority) == ("default", 1)
    configure(home, "queue: team-a\npriority: 5\n")
    monkeypatch.setenv("ORCHESTRATOR_PRIORITY", "7")
    assert (resolve().queue, resolve().priority) == ("team-a", 7)
    for name, wrong in (
        ("queue", "team a"),
        ("queue", "-"),
        ("priority", "0"),
        ("priority", "high"),
        ("priority", "101"),
    ):
        with pytest.raises(UserError, match=f"The {name} .*allowed: "):
            resolve({name: wrong})


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("storage: [a, b]", r"storage in .*config.yaml is not valid: got a list; allowed: text\.$"),
        ("prices: {gpu: 2}", r"prices in .*config.yaml is not valid: got a mapping; allowed: text\.$"),
        ("storage: 3", r"storage in .*config.yaml is not valid: got 3; allowed: text\. Put it in quotes\.$"),
        ("experiment: 2026-11-28", r"experiment in .* got 2026-11-28; allowed: text\. Put it in quotes\.$"),
        ("tracking: false", r"tracking in .* got False; allowed: text\. Put it in quotes\.$"),
        ("priority: [2]", r"priority in .*config.yaml is not valid: got a list; allowed: an integer\.$"),
        ("priority: true", r"priority in .* got True; allowed: an integer\.$"),
        ("start_timeout: 1.5", r"start_timeout in .* got 1\.5; allowed: an integer\.$"),
    ],
)
def test_value_of_the_wrong_type_in_the_file_is_refused(home: Path, line: str, says: str) -> None:
    configure(home, f"{line}\n")
    with pytest.raises(UserError, match=says) as caught:
        resolve()
    assert caught.value.code == USAGE


@pytest.mark.parametrize("line", ["start_timeout: 60", "start_timeout: '60'"])
def test_an_integer_of_the_file_may_be_text(home: Path, line: str) -> None:
    configure(home, f"{line}\nexperiment: '3'\nqueue:\n")
    assert (resolve().start_timeout, resolve().experiment, resolve().queue) == (60, "3", "default")


def test_tracking_can_be_off() -> None:
    found = resolve({"tracking": "none"})
    assert found.tracking is None
    assert not found.embedded


def test_relative_paths_are_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    found = resolve({"storage": "here", "data": "~/sets", "tracking": "sqlite:///mine.db"})
    assert found.storage == tmp_path / "here"
    assert found.data == tmp_path / "me" / "sets"
    assert found.tracking == f"sqlite:///{tmp_path}/mine.db"


@pytest.mark.parametrize("uri", ["https://mlflow.example", "http://localhost:5000", "postgresql://db/mlflow"])
def test_tracking_address_of_a_server_or_database_is_accepted(uri: str) -> None:
    assert resolve({"tracking": uri}).tracking == uri


@pytest.mark.parametrize("uri", ["mlruns", "file:///srv/mlruns", "/srv/mlruns", "localhost:5000"])
def test_unsupported_tracking_address_is_refused(uri: str) -> None:
    with pytest.raises(UserError, match=f"tracking address is not supported: got '{uri}'; allowed: http") as caught:
        resolve({"tracking": uri})
    assert caught.value.code == USAGE


@pytest.mark.parametrize("name", ["my home", "q?home", "h#x"])
def test_sqlalchemy_opens_the_file_below_a_home_of_any_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlalchemy import make_url

    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / name))
    uri = resolve().tracking
    assert uri is not None
    assert make_url(uri).database == str(sqlite_file(uri)) == str(tmp_path / name / "mlflow.db")


def test_path_with_a_percent_sign_is_refused_unless_tracking_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = str(tmp_path / "feature%2Fpart")
    for variable in ("ORCHESTRATOR_HOME", "ORCHESTRATOR_STORAGE"):
        with monkeypatch.context() as patched:
            patched.setenv(variable, home)
            with pytest.raises(UserError, match=r"contains %, which MLflow decodes: got .*feature%2Fpart"):
                resolve()
            assert resolve({"tracking": "none"}).tracking is None


def test_query_of_a_sqlite_address_is_not_part_of_its_file_path() -> None:
    uri = resolve({"tracking": "sqlite:////tmp/a%3Fb.db?timeout=60"}).tracking
    assert uri == "sqlite:////tmp/a%3Fb.db?timeout=60"
    assert sqlite_file(uri) == Path("/tmp/a?b.db")
    assert sqlite_file("postgresql://host/db") is None


@pytest.mark.parametrize("password", ["12/34", "p w"])
def test_unescaped_password_in_the_address_is_refused_and_not_repeated(password: str) -> None:
    with pytest.raises(UserError, match=r"got mysql://\*\*\*@h/db\. Write a slash in a password as %2F") as caught:
        resolve({"tracking": f"mysql://u:{password}@h/db"})
    assert password not in str(caught.value)


@pytest.mark.parametrize("name", ["storage", "tracking", "ray_address"])
def test_an_empty_option_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"--{name.replace('_', '-')} is empty"):
        resolve({name: ""})


def test_storage_with_an_incomplete_uri_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"no folder and no URI: got s3:/bucket/x; allowed: a folder, or s3://"):
        resolve({"storage": "s3:/bucket/x"})
    monkeypatch.chdir(tmp_path)
    assert resolve({"storage": "./a:b"}).storage == tmp_path / "a:b"


def test_unknown_setting_in_the_file_is_refused(home: Path) -> None:
    configure(home, "trackng: none\n")
    with pytest.raises(
        UserError, match=r"Unknown setting in .*config\.yaml: got 'trackng'.* Did you mean 'tracking'\?"
    ):
        resolve()


def test_home_setting_in_the_file_is_refused(home: Path) -> None:
    configure(home, "home: /elsewhere\n")
    with pytest.raises(UserError, match="Unknown setting"):
        resolve()


def test_malformed_yaml_file_is_refused_with_line_and_column(home: Path) -> None:
    configure(home, "storage: /here\ntracking: [\n")
    with pytest.raises(UserError, match=r"config\.yaml, line 3, column 1 is not valid YAML"):
        resolve()


def test_a_setting_left_empty_in_the_file_is_unset(home: Path) -> None:
    configure(home, "experiment:\ntracking:\nstorage: /here\n")
    found = resolve()
    assert found.experiment is None
    assert found.embedded
    assert found.sources["tracking"] == "default"
    assert str(found.storage) == "/here"


def test_login_in_the_address_is_moved_to_mlflow_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "before")
    settings = resolve({"tracking": "https://bob:hunt%40er@mlflow.example:5000/base"})
    assert settings.tracking == "https://mlflow.example:5000/base"
    assert (os.environ["MLFLOW_TRACKING_USERNAME"], os.environ["MLFLOW_TRACKING_PASSWORD"]) == ("bob", "hunt@er")
