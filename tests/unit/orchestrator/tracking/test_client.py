"""Which errors are rejections of a request, and which an outage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException, RestException
from mlflow.utils.rest_utils import verify_rest_response
from mlflow.utils.validation import _validate_metric_name
from requests import ConnectionError, HTTPError, Response

from orchestrator.tracking.client import Client, Doubtful, Refused

ENDPOINT = "/api/2.0/mlflow/runs/log-batch"


@pytest.fixture
def client(database: Path, tmp_path: Path) -> Client:
    """Of a server, as far as its errors go."""
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
        # Gateways in front of a server that restarts.
        (404, "404 page not found", MlflowException),
        (404, {"message": "no Route matched with those values"}, MlflowException),
        (400, "<html>400 Bad Request</html>", MlflowException),
        (409, "conflict", MlflowException),
        (502, "<html>502</html>", MlflowException),
        (200, "<html>log in</html>", MlflowException),
    ],
)
def test_an_answer(status: int, body: object, error: type[Exception], client: Client) -> None:
    text = body if isinstance(body, str) else json.dumps(body)
    with pytest.raises(error) as caught:
        client._call(verify_rest_response, response(status, text), ENDPOINT)
    assert isinstance(caught.value, Refused) == issubclass(error, Refused)
    assert isinstance(caught.value, Doubtful) == (error is Doubtful)


def test_what_mlflows_client_rejects_itself(client: Client) -> None:
    with pytest.raises(Refused, match="Invalid value"):
        client._call(_validate_metric_name, "a?b")


@pytest.mark.parametrize(
    ("status", "is_refused"),
    [(400, True), (413, True), (415, True), (401, False), (403, False), (404, False), (429, False), (507, False)],
)
def test_an_answer_to_a_file(
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
