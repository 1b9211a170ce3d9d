"""Login at MLflow: the credentials file, the environment, certificates and the check of the server."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from orchestrator.cluster import mlflow_login, preflight
from orchestrator.errors import UNAVAILABLE, UserError
from orchestrator.storage.settings import resolve
from tests.support.web import QuietHandler, serving

VARIABLES = (
    "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_INSECURE_TLS",
    "MLFLOW_TRACKING_SERVER_CERT_PATH", "MLFLOW_TRACKING_CLIENT_CERT_PATH", "REQUESTS_CA_BUNDLE",
)  # fmt: skip
BASIC = {"Authorization": "Basic YW5uYTpzZWNyZXQ="}  # anna:secret


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def write_login(home: Path) -> None:
    (home / ".mlflow").mkdir()
    text = "[mlflow]\nmlflow_tracking_username = anna\nmlflow_tracking_password = secret\n"
    (home / ".mlflow" / "credentials").write_text(text)


def test_credentials_file_is_read_if_the_environment_has_no_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mlflow_login.credentials("http://host:5000") == ("http://host:5000", {})
    assert mlflow_login.user() == "this user"
    write_login(tmp_path)
    assert mlflow_login.credentials("http://host:5000") == ("http://host:5000", BASIC)
    assert mlflow_login.user() == "anna"
    assert mlflow_login.credentials("http://anna:secret@host") == ("http://host", BASIC)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "bob")
    assert mlflow_login.credentials("http://host")[1] != BASIC
    assert mlflow_login.user() == "bob"


def test_credentials_file_that_is_not_ini_raises_user_error(tmp_path: Path) -> None:
    write_login(tmp_path)
    file = Path(mlflow_login.CREDENTIALS).expanduser()
    file.write_text("mlflow_tracking_username = anna")
    with pytest.raises(UserError, match=r"credentials is not an INI file: got .*Write \[mlflow\]") as caught:
        mlflow_login.user()
    assert caught.value.code == UNAVAILABLE


class Server(QuietHandler):
    """A server that answers only requests with the login of anna."""

    def post(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.respond(200 if self.headers["Authorization"] == BASIC["Authorization"] else 401, b"{}")


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A self-signed certificate of 127.0.0.1 with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(alternative, critical=False).sign(key, hashes.SHA256())
    )  # fmt: skip
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = tmp_path / "certificate.pem"
    file.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
    return file


@pytest.fixture
def address(certificate: Path) -> Iterator[str]:
    """A server that asks for a certificate of the client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.load_verify_locations(certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    with serving(Server, context) as url:
        yield url


@pytest.mark.parametrize("trust", ["MLFLOW_TRACKING_SERVER_CERT_PATH", "REQUESTS_CA_BUNDLE", "insecure"])
def test_certificates_and_login_reach_the_server(
    trust: str, address: str, certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = resolve({"tracking": address})
    if trust == "insecure":
        monkeypatch.setenv("MLFLOW_TRACKING_INSECURE_TLS", "true")
    else:
        monkeypatch.setenv(trust, str(certificate))
    with pytest.raises(UserError, match="No MLflow answers"):
        preflight.tracking(settings)  # without a certificate of the client
    monkeypatch.setenv("MLFLOW_TRACKING_CLIENT_CERT_PATH", str(certificate))
    with pytest.raises(UserError, match="refuses: HTTP 401"):
        preflight.tracking(settings)
    write_login(tmp_path)
    preflight.tracking(settings)


def test_an_unknown_certificate_is_refused(address: str, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_CLIENT_CERT_PATH", str(certificate))
    with pytest.raises(UserError, match=r"No MLflow answers at https.*certificate verify failed"):
        preflight.tracking(resolve({"tracking": address}))
