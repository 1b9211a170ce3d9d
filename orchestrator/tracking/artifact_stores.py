"""Errors of the stores that MLflow's client writes artifacts to without MLflow's server, such as S3."""

from __future__ import annotations

import sys
from collections.abc import Mapping

PASSING = (401, 403, 404, 408, 425, 429)
"""Statuses of 400 to 499 of an artifact request that may pass, as those from 500 on do."""

_CLASSES = {
    "requests": ("RequestException",),
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    "boto3.exceptions": ("Boto3Error",),
    "google.api_core.exceptions": ("GoogleAPIError",),
    "azure.core.exceptions": ("AzureError",),
}

_NO_LOGIN = ("NoCredentialsError", "PartialCredentialsError", "NoRegionError")
"""Errors of botocore about the environment of this process."""


def errors() -> tuple[type[Exception], ...]:
    """The exceptions of those libraries that this process has imported."""
    return tuple(
        getattr(sys.modules[name], each)
        for name, classes in _CLASSES.items()
        if name in sys.modules
        for each in classes
    )


def may_pass(error: BaseException) -> bool:
    """Whether an upload that failed may succeed later: the store is out of reach, or refuses for now."""
    code = status(error)
    return code is not None and (code >= 500 or code in PASSING)


def status(error: BaseException) -> int | None:
    """The HTTP status of a store's error, 500 where nothing answered. None for other errors and a missing login."""
    if type(error).__name__ == "S3UploadFailedError" and error.__context__ is not None:
        error = error.__context__
    if not isinstance(error, errors()) or type(error).__name__ in _NO_LOGIN:
        return None
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # of botocore
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500))
    codes = (getattr(response, "status_code", None), getattr(error, "status_code", None), getattr(error, "code", None))
    return next((int(code) for code in codes if isinstance(code, int)), 500)
