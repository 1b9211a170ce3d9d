"""What a unit costs as data grow: time, peak memory and bytes of each workload's first wall, at three sizes.

    python benchmarks/scale.py                          # all items, three sizes each
    python benchmarks/scale.py prepare --sizes 1e6 4e6 16e6
    python benchmarks/scale.py checkpoint --memory 64 --disk 500

Each size runs in a process of its own, on generated data. The table has the cost of a unit at each size, and its
growth: the largest size's cost of a unit over the smallest one's, 1 where the cost is proportional. The wall is the
size at which the line through the two larger sizes reaches ``--memory`` or ``--disk``, in GiB. It is computed, not run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean

from growth import MIB, Cost, Item, documents, images, interactions, storage
from harness import HERE, answer, foreign_seconds, load, number, origin, spawn, versions, write_results

GIB = 2**30

ITEMS: Mapping[str, Item] = {**interactions.ITEMS, **storage.ITEMS, **images.ITEMS, **documents.ITEMS}


def run(name: str, size: int) -> Cost:
    """Run an item at a size in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        environment = {"ORCHESTRATOR_CACHE": folder, "ORCHESTRATOR_HOME": f"{folder}/home"}
        words = [sys.executable, str(HERE / "scale.py"), name, "--one", str(size), "--folder", folder]
        output, _ = spawn(words, env=environment, threads=1)
        return Cost(**answer(output))


def wall(sizes: Sequence[int], used: Sequence[int], limit: float) -> float | None:
    """The size at which the line through the two larger sizes reaches the limit; None if that grows by under 1 MiB."""
    slope = (used[-1] - used[-2]) / (sizes[-1] - sizes[-2])
    return sizes[-1] + (limit - used[-1]) / slope if used[-1] - used[-2] >= MIB else None


def table(found: Mapping[str, Mapping[int, Cost]], limits: Mapping[str, float]) -> list[str]:
    """The lines of the printed table."""
    lines = [
        "| item | unit | sizes | µs a unit | growth | bytes in memory a unit | growth | bytes on disk a unit | wall |",
        f"|{'---|' * 9}",
    ]
    for name, costs in found.items():
        item = ITEMS[name]
        sizes = sorted(costs)
        seconds, memories, written = (
            [getattr(costs[size], field) for size in sizes] for field in ("seconds", "memory", "written")
        )
        walls = []
        for what, used in (("memory", memories), ("disk", written)):
            if len(sizes) > 1 and (size := wall(sizes, used, limits[what] * GIB)):
                walls.append(f"{float(f'{size:.2g}'):,.0f} ({what}, {limits[what]:g} GiB)")
        columns = [item.what, item.unit, " / ".join(number(size) for size in sizes)]
        for values, scale in ((seconds, 1e6), (memories, 1.0)):
            each = [scale * value / size for value, size in zip(values, sizes)]
            growth = f"{each[-1] / each[0]:.2f}" if each[0] > 0 else "-"
            columns += [" / ".join(f"{value:.3g}" for value in each), growth]
        columns += [f"{written[-1] / sizes[-1]:.3g}", "; ".join(walls) or "-"]
        lines.append(f"| {' | '.join(columns)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("items", nargs="*", choices=[*ITEMS, []], help="Default: all.")
    parser.add_argument("--sizes", nargs="+", type=lambda text: int(float(text)), help="In the place of an item's own.")
    parser.add_argument("--memory", type=float, default=64, help="Memory of the machine of the wall, in GiB.")
    parser.add_argument("--disk", type=float, default=1000, help="Its disk, in GiB.")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(asdict(ITEMS[args.items[0]].measure(args.one, args.folder))))
        return
    before = origin()
    found: dict[str, dict[int, Cost]] = {}
    busy: dict[str, float] = {}
    for name in args.items or ITEMS:
        found[name] = {}
        used = foreign_seconds()
        started = time.monotonic()
        for size in args.sizes or ITEMS[name].sizes:
            found[name][size] = run(name, size)
            print(f"{name} {size:,}: {asdict(found[name][size])}", file=sys.stderr)
        others = min(after - before for after, before in zip(foreign_seconds(), used))
        busy[name] = max(0.0, others / (time.monotonic() - started))
    lines = table(found, {"memory": args.memory, "disk": args.disk})
    print("\n".join(lines))
    print(f"Other processes used {mean(busy.values()):.1f} cores, at most {max(busy.values()):.1f}.", file=sys.stderr)
    if not args.items and not args.sizes:
        results = {name: {str(size): asdict(cost) for size, cost in costs.items()} for name, costs in found.items()}
        made = {"benchmark": "scale", **before, "load_after": load(), "versions": versions("torch", "numpy", "pyarrow")}
        made |= {"busy_cores": busy, "results": results, "table": lines}
        write_results(HERE / "results" / "scale.json", made)


if __name__ == "__main__":
    main()
