"""Login and encryption as MLflow's own client has them, without importing MLflow."""

from __future__ import annotations

import base64
import configparser
import os
import ssl
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from orchestrator.errors import UNAVAILABLE, UserError, one_line

CREDENTIALS = "~/.mlflow/credentials"


def credentials(address: str) -> tuple[str, dict[str, str]]:
    """The address without its login, and the header that MLflow's client would send.

    The login is from the address, from ``MLFLOW_TRACKING_USERNAME`` and ``_PASSWORD``, or from the file
    ``~/.mlflow/credentials``; without one ``MLFLOW_TRACKING_TOKEN`` is used.
    """
    parts = urlsplit(address)
    uri = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    user = parts.username or _login("MLFLOW_TRACKING_USERNAME")
    password = parts.password or _login("MLFLOW_TRACKING_PASSWORD")
    if user and password:
        pair = f"{unquote(user)}:{unquote(password)}".encode()
        return uri, {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
    if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
        return uri, {"Authorization": f"Bearer {token}"}
    return uri, {}


def user() -> str:
    """Name of this user on the server, for messages."""
    return _login("MLFLOW_TRACKING_USERNAME") or "this user"


def encryption() -> ssl.SSLContext:
    """Certificates to check the server by, and the client's own. Raises OSError when one cannot be read."""
    trusted = os.environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH") or os.environ.get("REQUESTS_CA_BUNDLE")
    is_folder = trusted is not None and Path(trusted).is_dir()
    context = ssl.create_default_context(cafile=None if is_folder else trusted, capath=trusted if is_folder else None)
    if os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("true", "1"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if own := os.environ.get("MLFLOW_TRACKING_CLIENT_CERT_PATH"):
        context.load_cert_chain(own)
    return context


def _login(variable: str) -> str | None:
    """Value of an environment variable, else of the credentials file."""
    if value := os.environ.get(variable):
        return value
    file = configparser.ConfigParser(interpolation=None)
    try:
        file.read(Path(CREDENTIALS).expanduser())
    except configparser.Error as error:
        raise UserError(
            f"{CREDENTIALS} is not an INI file", got=one_line(error), code=UNAVAILABLE,
            fix="Write [mlflow] into its first line, then mlflow_tracking_username = NAME",
        ) from None  # fmt: skip
    return file.get("mlflow", variable.lower(), fallback=None)
