"""Statistics of the interaction datasets that are present: thesis tables 3.1, 4.1, 5.1 and 6.2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from harness import origin

from workloads.data import DATASETS, DataError, check, default_data_root, load_interactions


def main() -> None:
    root = default_data_root()
    rows: dict[str, dict[str, Any]] = {}
    for name in (name for name, entry in DATASETS.items() if entry.kind == "interactions"):
        try:
            check(name, root)
        except DataError:
            continue
        data = load_interactions(name, root)
        items = np.bincount(np.concatenate([data.train, data.test])[:, 1], minlength=data.n_items)
        total = len(data.train) + len(data.test)
        rows[name] = {
            "users": data.n_users, "items": data.n_items, "rated_items": int((items > 0).sum()),
            "train": len(data.train), "test": len(data.test), "density": total / (data.n_users * data.n_items),
            "times": data.train_times is not None,
        }  # fmt: skip
        print(f"| {name} | " + " | ".join(str(value) for value in rows[name].values()) + " |")
    file = Path(__file__).parent / "results" / "dataset_statistics.json"
    file.write_text(json.dumps({**origin(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
