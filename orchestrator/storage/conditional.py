"""Conditional writes to an object on S3: only where there is none yet, or where it is still what was read.

``pyarrow.fs`` has none, so these few small objects go through boto3 (in the extras ``train`` and ``s3``), with
``If-None-Match: *`` and ``If-Match: ETAG``. Other stores, and an installation without boto3, have none:
:func:`reason_without` says so.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from orchestrator.storage.remote import CONNECT_SECONDS, Remote
from workloads.data.stores import s3_endpoint, s3_region

LIBRARY = "boto3"
EXTRA = "ray-experiment-orchestrator[s3]"
CHANGED = ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey", "412", "409")
"""Error codes of S3 when the condition of a write does not hold."""

_HONOURS: dict[tuple[str, str | None], bool] = {}
"""Whether each bucket honours conditions, by name and endpoint."""

_TESTING = threading.Lock()
"""Held while a bucket is tested, so that each is tested once."""

UNREACHABLE = ("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError")


class Changed(Exception):
    """The object was written or removed by another process since it was read."""


@dataclass(frozen=True, slots=True)
class Objects:
    """Objects below a URI on S3, each with the tag of its content. Every error is an OSError."""

    location: Remote

    def read(self, name: str) -> tuple[bytes, str] | None:
        """Content and tag of an object; None if it does not exist."""
        try:
            answer = self._call("get_object", name)
            return answer["Body"].read(), answer["ETag"]
        except Changed:  # no such key
            return None
        except _transport_errors() as error:
            raise _os_error("get_object", error) from None

    def write(self, name: str, content: bytes, tag: str | None) -> str:
        """Replace the object with ``tag``, or create it if None. Returns the new tag. Raises Changed."""
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        return str(self._call("put_object", name, Body=content, **condition)["ETag"])

    def remove(self, name: str, tag: str | None) -> None:
        """Remove the object with ``tag``, or with any if None. Raises Changed."""
        self._call("delete_object", name, **({"IfMatch": tag} if tag else {}))

    def _call(self, operation: str, name: str, **more: Any) -> Any:
        from botocore.exceptions import ClientError

        location = urlsplit(self.location.uri)
        key = f"{location.path.strip('/')}/{name}".lstrip("/")
        try:
            return getattr(_client(self.location), operation)(Bucket=location.netloc, Key=key, **more)
        except ClientError as error:
            if error.response["Error"]["Code"] in CHANGED:
                raise Changed(name) from None
            raise _os_error(operation, error) from None
        except _transport_errors() as error:
            raise _os_error(operation, error) from None


def objects(location: Remote) -> Objects | None:
    """Objects below ``location`` for conditional writes; None if unsupported. Raises OSError."""
    return None if reason_without(location) else Objects(location)


def reason_without(location: Remote) -> str | None:
    """Why ``location`` does not support conditional writes; None if it does. Raises OSError on no answer."""
    parts = urlsplit(location.uri)
    if parts.scheme != "s3":
        return f"{parts.scheme}:// has no conditional writes here"
    if find_spec(LIBRARY) is None:
        return f"{LIBRARY} is not installed"
    store = (parts.netloc, s3_endpoint())
    with _TESTING:
        if store not in _HONOURS:
            _HONOURS[store] = _honours_conditions(location)
    if not _HONOURS[store]:
        return "the store does not honour If-Match and If-None-Match"
    return None


def warning(location: Remote) -> str | None:
    """Warning for :func:`reason_without`, or None."""
    reason = reason_without(location)
    if reason is None:
        return None
    fix = f". Install it: pip install '{EXTRA}'" if reason.startswith(LIBRARY) else ""
    apart = "each driver that takes over stores in a folder of its own"
    return f"{location.uri}: no conditional writes ({reason}); {apart}{fix}"


def _honours_conditions(location: Remote) -> bool:
    """Whether the store honours conditions, tested with a temporary object."""
    store = Objects(location)
    name = f".probe-{secrets.token_hex(8)}"
    try:
        tag = store.write(name, b"first", None)
    except (Changed, NotImplementedError):
        return False
    try:
        return _is_refused(store, name, None) and _is_refused(store, name, f'"{"0" * 32}"') and bool(tag)
    except NotImplementedError:
        return False
    finally:
        store.remove(name, None)


def _is_refused(store: Objects, name: str, tag: str | None) -> bool:
    try:
        store.write(name, b"second", tag)
    except Changed:
        return True
    return False


def _client(location: Remote) -> Any:
    environment = (s3_endpoint(), s3_region(), os.environ.get("AWS_ACCESS_KEY_ID"))
    return _open_client(urlsplit(location.uri).netloc, location.request_seconds, environment)


@lru_cache
def _open_client(bucket: str, request_seconds: float, environment: tuple[str | None, ...]) -> Any:
    import boto3
    from botocore.config import Config

    endpoint, region, _ = environment
    if region is None:
        from pyarrow.fs import resolve_s3_region

        region = resolve_s3_region(bucket)
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=request_seconds,
        retries={"total_max_attempts": 1},  # callers retry
        request_checksum_calculation="when_required",  # some stores support only the required ones
        response_checksum_validation="when_required",
        s3={"addressing_style": "path" if endpoint else "auto"},
    )
    return boto3.client("s3", endpoint_url=endpoint, region_name=region, config=config)


def _transport_errors() -> tuple[type[Exception], ...]:
    from botocore.exceptions import BotoCoreError, HTTPClientError

    return (BotoCoreError, HTTPClientError)


def _os_error(operation: str, error: Exception) -> OSError:
    """An error in pyarrow's wording, so that ``remote.REASONS`` explains both."""
    code = type(error).__name__
    if code == "ClientError":
        code = error.response["Error"]["Code"]  # type: ignore[attr-defined]
        if code in ("NotImplemented", "501"):
            raise NotImplementedError(operation) from None
    elif code in UNREACHABLE:
        code = "NetworkConnection"
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", code).upper()
    return OSError(f"AWS Error {words} during {operation} operation: {error}")
