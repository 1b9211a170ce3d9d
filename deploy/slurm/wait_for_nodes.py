"""Wait until Ray has a number of nodes: a sweep sizes itself by the nodes that it finds.

    python wait_for_nodes.py 4

After five minutes it goes on with fewer; without any it exits with 3.
"""

import sys
import time

import ray

SECONDS = 300


def nodes() -> int:
    """How many nodes are alive; 0 while the head does not answer."""
    try:
        ray.init(log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
    except ConnectionError:
        return 0
    return sum(node["Alive"] for node in ray.nodes())


def main(wanted: int) -> int:
    deadline = time.monotonic() + SECONDS
    while (found := nodes()) < wanted and time.monotonic() < deadline:
        time.sleep(1)
    print(f"Ray has {found} of {wanted} nodes", flush=True)
    return 0 if found else 3


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
