"""HTTP requests that follow redirects only within the given address.

``urllib`` copies every header, including a login, to the target of a redirect.
"""

from __future__ import annotations

import http.client
import ssl
import urllib.request
from typing import IO
from urllib.parse import urlsplit

PORTS = {"http": 80, "https": 443}


class RedirectRefused(OSError):
    """The server redirects to ``target``, another origin."""

    def __init__(self, target: str) -> None:
        self.target = target
        super().__init__(f"it redirects to {target}")


class SameOrigin(urllib.request.HTTPRedirectHandler):
    """Follow redirects within one scheme, host and port. Raises RedirectRefused for all others.

    A redirect from http to https is refused too: the login was sent unencrypted, and the user should know.
    """

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        target = origin(newurl)
        if target != origin(req.full_url):
            raise RedirectRefused(target)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def read(request: urllib.request.Request | str, seconds: float, encryption: ssl.SSLContext | None = None) -> bytes:
    """The body of the answer. Raises OSError, of which HTTPError and RedirectRefused are kinds."""
    https = urllib.request.HTTPSHandler(context=encryption)
    with urllib.request.build_opener(SameOrigin, https).open(request, timeout=seconds) as answer:
        body: bytes = answer.read()
    return body


def origin(url: str) -> str:
    """``scheme://host[:port]`` in lower case, without a login and without the scheme's own port. Raises ValueError."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}{'' if parts.port in (None, PORTS.get(parts.scheme)) else f':{parts.port}'}"
