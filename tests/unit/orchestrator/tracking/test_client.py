"""Which errors are rejections of a request, and which are outages."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from boto3.exceptions import S3UploadFailedError
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from mlflow.exceptions import MlflowException, RestException
from mlflow.utils.rest_utils import verify_rest_response
from mlflow.utils.validation import _validate_metric_name
from requests import ConnectionError, HTTPError, Response

from orchestrator.registry import models
from orchestrator.tracking import artifact_stores
from orchestrator.tracking.client import KEY, OWNER, Client, Doubtful, Refused
from tests.support import s3
from tests.support.ports import free_port

ENDPOINT = "/api/2.0/mlflow/runs/log-batch"


@pytest.fixture
def client(database: Path, tmp_path: Path) -> Client:
    """A client that handles errors as if they came from a server."""
    client = Client(f"sqlite:///{database}", "toy", tmp_path)
    client._answer = RestException
    return client


def response(status: int, body: str) -> Response:
    answer = Response()
    answer.status_code = status
    answer._content = body.encode()
    return answer


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (400, {"error_code": "INVALID_PARAMETER_VALUE", "message": "a name"}, Refused),
        (404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no such run"}, Refused),
        (400, {"error_code": "BAD_REQUEST", "message": "(sqlite3.DatabaseError)"}, Doubtful),
        (413, "<html>413 Request Entity Too Large</html>", Refused),
        (500, {"error_code": "INTERNAL_ERROR", "message": "x"}, MlflowException),
        (503, {"error_code": "TEMPORARILY_UNAVAILABLE", "message": "x"}, MlflowException),
        # Answers of gateways in front of a server that restarts.
        (404, "404 page not found", MlflowException),
        (404, {"message": "no Route matched with those values"}, MlflowException),
        (400, "<html>400 Bad Request</html>", MlflowException),
        (409, "conflict", MlflowException),
        (502, "<html>502</html>", MlflowException),
        (200, "<html>log in</html>", MlflowException),
    ],
)
def test_server_answer_is_classified_as_refused_doubtful_or_outage(
    status: int, body: object, error: type[Exception], client: Client
) -> None:
    text = body if isinstance(body, str) else json.dumps(body)
    with pytest.raises(error) as caught:
        client._call(verify_rest_response, response(status, text), ENDPOINT)
    assert isinstance(caught.value, Refused) == issubclass(error, Refused)
    assert isinstance(caught.value, Doubtful) == (error is Doubtful)


def test_experiment_name_that_is_not_utf_8_is_escaped(database: Path, tmp_path: Path) -> None:
    client = Client(f"sqlite:///{database}", "a\udcff", tmp_path)
    assert client._client.get_experiment(client.experiment).name == "a\\udcff"


def test_text_with_surrogates_raises_refused(client: Client) -> None:
    """The error is raised by the client, or by MLflow's client, which calls it an internal error."""
    run = client.create("r", {}, None, 0)
    with pytest.raises(Refused, match="surrogates not allowed"):
        client._call(client._client.set_tag, run, "born", "a\udcff")
    with pytest.raises(Refused, match="surrogates not allowed"):
        client._call(lambda: "a\udcff".encode())


def test_request_rejected_by_the_mlflow_client_raises_refused(client: Client) -> None:
    with pytest.raises(Refused, match="Invalid value"):
        client._call(_validate_metric_name, "a?b")


@pytest.mark.parametrize(
    ("status", "is_refused"),
    [(400, True), (413, True), (415, True), (401, False), (403, False), (404, False), (429, False), (507, False)],
)
def test_status_of_a_file_upload_decides_whether_it_is_refused(
    status: int, is_refused: bool, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(run: str, path: str) -> None:
        raise HTTPError(f"{status} for url", response=response(status, ""))

    monkeypatch.setattr(client._client, "log_artifact", put)
    (tmp_path / "report.html").write_text("x")
    with pytest.raises(Refused if is_refused else HTTPError, match=str(status)):
        client.files("run", [str(tmp_path / "report.html")])


def test_a_store_of_files_without_an_answer_is_an_outage(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(run: str, path: str) -> None:
        raise ConnectionError("refused")

    monkeypatch.setattr(client._client, "log_artifact", put)
    (tmp_path / "report.html").write_text("x")
    with pytest.raises(ConnectionError):
        client.files("run", [str(tmp_path / "report.html")])


@pytest.mark.parametrize("is_there", [False, True])
def test_unreachable_s3_is_an_outage_and_a_missing_bucket_is_not(
    is_there: bool, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a server with --no-serve-artifacts, S3 does not answer or does not have the bucket yet."""
    for name, value in {**s3.KEYS, "AWS_MAX_ATTEMPTS": "1"}.items():
        monkeypatch.setenv(name, value)
    experiment = client._client.create_experiment("direct", artifact_location="s3://bucket/runs")
    run = client._client.create_run(experiment).info.run_id
    (tmp_path / "report.html").write_text("x")
    with s3.in_this_process() if is_there else nullcontext(f"http://127.0.0.1:{free_port()}") as endpoint:
        monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", endpoint)
        with pytest.raises(S3UploadFailedError if is_there else BotoCoreError) as caught:
            client.files(run, [str(tmp_path / "report.html")])
    assert isinstance(caught.value, models.outage_errors())
    assert models.is_outage(caught.value) is not is_there


@pytest.mark.parametrize(("status", "passes"), [(400, False), (403, True), (404, True), (429, True), (503, True)])
def test_s3_status_decides_whether_an_error_is_temporary(status: int, passes: bool) -> None:
    error = ClientError({"ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")
    assert artifact_stores.may_pass(error) is passes
    assert not artifact_stores.may_pass(NoCredentialsError())
    assert not artifact_stores.may_pass(KeyError("a bug"))


def test_run_without_a_key_tag_is_not_listed_as_existing(client: Client) -> None:
    kept, other = (client.create(key, {KEY: key, OWNER: "me"}, None, 0) for key in ("a", "b"))
    client._client.delete_tag(other, KEY)
    assert [(key, run.run_id) for key, run in client.existing_runs("me")] == [("a", kept)]


def test_denied_creation_of_an_experiment_raises_mlflow_exception(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MlflowException("PERMISSION_DENIED")

    monkeypatch.setattr("mlflow.tracking.MlflowClient.create_experiment", refuse)
    with pytest.raises(MlflowException, match="PERMISSION_DENIED"):
        Client(f"sqlite:///{database}", "new", tmp_path)
