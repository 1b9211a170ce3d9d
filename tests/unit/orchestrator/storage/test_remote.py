"""Storage behind a URI: names, objects, and errors when it cannot be used. The file system stands for S3."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import UNAVAILABLE, USAGE, UserError
from orchestrator.storage import remote
from orchestrator.storage.remote import Remote
from orchestrator.storage.settings import resolve


@pytest.fixture
def place(tmp_path: Path) -> Remote:
    return Remote(f"file://{tmp_path}/bucket") / "run"


# Mirror folders


@given(st.text("abz09-._~/%=é", min_size=1, max_size=40))
def test_mirror_path_maps_back_to_its_uri(path: str) -> None:
    uri, home = f"s3://bucket/{path}", Path("/home")
    storage = remote.mirror_of(uri, home)
    assert (storage.parent, len(storage.parts)) == (home / "mirror", 4)
    assert remote.uri_of(storage) == uri
    assert remote.location_of(storage) == Remote(uri)
    assert remote.location_of(storage / "run" / "trials" / "00000") == Remote(f"{uri}/run/trials/00000")
    assert remote.run_folder(storage / "run" / "trials" / "00000") == storage / "run"


@pytest.mark.parametrize("path", ["/a/storage", "/a/mirror/storage", "/mirror", "/"])
def test_a_plain_path_mirrors_nothing(path: str) -> None:
    assert remote.uri_of(Path(path)) is remote.location_of(Path(path)) is remote.run_folder(Path(path)) is None


@pytest.mark.parametrize(
    ("given", "uri"),
    [("s3://b/p/", "s3://b/p"), ("s3://b", "s3://b"), ("gs://b/p", "gs://b/p"), ("file:///x", None), ("/x", None)],
)
def test_storage_setting_resolves_to_a_local_folder(given: str, uri: str | None, home: Path) -> None:
    settings = resolve({"storage": given})
    assert settings.remote == uri
    assert settings.storage == (remote.mirror_of(uri, home) if uri else Path("/x"))


@pytest.mark.parametrize("uri", ["s3://key:secret@b/p", "s3://b/p?access_key=secret", "s3://b/p#secret"])
def test_a_secret_in_the_address_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(UserError, match=r"only scheme, bucket and prefix: got s3://b/p") as caught:
        resolve({"storage": uri})
    assert "secret" not in str(caught.value)
    assert caught.value.code == USAGE


@pytest.mark.parametrize("uri", ["s3://", "s3:///p", "s3://b/" + "p" * 200])
def test_invalid_storage_uri_is_refused(uri: str) -> None:
    with pytest.raises(UserError, match="is not valid"):
        resolve({"storage": uri})


# Objects


def test_objects_are_sent_listed_fetched_and_removed(place: Remote, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    before = time.time() - 1
    place.send(tmp_path / "file", "deep/below/object")
    place.write("other", b"x" * 3)
    assert {name: found.size for name, found in place.files().items()} == {"deep/below/object": 7, "other": 3}
    assert before <= place.files()["other"].time <= time.time() + 1
    assert place.find("other") == place.files()["other"]
    assert place.read("deep/below/object") == b"content"
    assert place.folders() == ["deep"]
    place.fetch("deep/below/object", tmp_path / "new" / "copy")
    assert (tmp_path / "new" / "copy").read_text() == "content"
    place.remove("other")
    place.remove_folder("deep")
    assert place.files() == {}


def test_missing_objects_are_read_as_none_and_raise_on_transfer(place: Remote, tmp_path: Path) -> None:
    assert place.files() == {}
    assert place.folders() == []
    assert place.find("none") is place.read("none") is None
    place.remove("none")
    place.remove_folder("none")
    with pytest.raises(FileNotFoundError):
        place.fetch("none", tmp_path / "copy")
    with pytest.raises(FileNotFoundError):
        place.send(tmp_path / "none", "object")
    assert list(tmp_path.glob("**/*copy*")) == []
    assert place.files() == {}


def test_storage_clock_matches_local_time_and_leaves_no_objects(place: Remote) -> None:
    before = time.time() - 1
    assert before <= place.now() <= time.time() + 1
    assert place.files() == {}


# Errors


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("When uploading: AWS Error NO_SUCH_BUCKET during PutObject operation: It does not", "there is no such bucket"),
        ("AWS Error ACCESS_DENIED during PutObject operation: Access Denied", "permission denied"),
        ("AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 7", "nothing answers"),
        ("AWS Error UNKNOWN (HTTP status 400) during X operation: Message: Bad. (Request ID: 1)", "Bad."),
        ("something else\nin two lines", "something else"),
    ],
)
def test_storage_errors_are_shortened_to_a_reason_and_a_fix(text: str, said: str) -> None:
    what, fix = remote.reason(OSError(text))
    assert what.endswith(said)
    assert fix


def test_unreachable_endpoint_raises_user_error_without_the_secret_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "hidden-key", "AWS_REGION": "x"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    remote._open.cache_clear()
    with pytest.raises(UserError, match="s3://b/p cannot be used: nothing answers") as caught:
        Remote("s3://b/p").check()
    assert caught.value.code == UNAVAILABLE
    assert "hidden-key" not in str(caught.value)
    remote._open.cache_clear()


def test_unknown_storage_scheme_raises_user_error(home: Path) -> None:
    with pytest.raises(UserError, match="tape://b/p cannot be used"):
        Remote(str(resolve({"storage": "tape://b/p"}).remote)).check()
