"""Whether a service answers on its API, as a client would ask it: by its own name, with its credentials.

``/health`` would be 200 even where the host check or a password refuses every client.

    python health.py mlflow http://127.0.0.1:5000/api/2.0/mlflow/experiments/search?max_results=1 mlflow:5000
    python health.py ray http://ray-head:8265/api/version
"""

import base64
import os
import sys
import urllib.request

SECONDS = 4


def authorization(service: str) -> str:
    """The header that the service's own client would send."""
    if service == "ray":
        return f"Bearer {os.environ['RAY_AUTH_TOKEN']}"
    pair = f"{os.environ['MLFLOW_TRACKING_USERNAME']}:{os.environ['MLFLOW_TRACKING_PASSWORD']}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def main(service: str, url: str, host: str | None = None) -> None:
    """Ask ``url`` under the name ``host``; exits 1 with the reason unless the answer is a success."""
    headers = {"Authorization": authorization(service)} | ({"Host": host} if host else {})
    try:
        urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=SECONDS).close()
    except OSError as error:
        sys.exit(f"{service} does not answer at {url}: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
