"""Wait until Ray has a number of nodes and its dashboard answers: a sweep sizes itself by the nodes that it finds.

    python wait_for_nodes.py 4

After five minutes it goes on with fewer; without any it exits with 3.
"""

import os
import sys
import time
import urllib.error
import urllib.request

import ray

SECONDS = 300


def nodes() -> int:
    """How many nodes are alive; 0 while the head does not answer."""
    try:
        ray.init(log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
    except ConnectionError:
        return 0
    return sum(node["Alive"] for node in ray.nodes())


def dashboard_answers() -> bool:
    """Whether the dashboard is up; without a token it answers 401."""
    try:
        urllib.request.urlopen(f"{os.environ['RAY_API_SERVER_ADDRESS']}/api/version", timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def main(wanted: int) -> int:
    deadline = time.monotonic() + SECONDS
    while ((present := nodes()) < wanted or not dashboard_answers()) and time.monotonic() < deadline:
        time.sleep(1)
    print(f"Ray has {present} of {wanted} nodes", flush=True)
    return 0 if present else 3


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
