"""lightly's input pipeline as shipped: two views per image in batches of 256.

A warm-up pass, then the seconds of one pass, as JSON.
"""

from __future__ import annotations

import argparse
import json
import time

from lightly_images import loader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--blur", type=float, required=True)
    args = parser.parse_args()
    batches = loader(args.images, 256, args.workers, args.blur)
    for _ in batches:
        pass
    started, seen = time.perf_counter(), 0
    for first, _second in batches:
        seen += len(first)
    print(json.dumps({"seconds": time.perf_counter() - started, "images": seen}))


if __name__ == "__main__":
    main()
