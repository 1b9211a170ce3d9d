"""Sizes of the image datasets, as printed in table 6.2 and as they are here."""

from __future__ import annotations

from typing import Any

from workloads.published import Computation, Drawn

_SIZES = ("classes", "pixels", "train", "test")

_PRINTED = {
    "cifar-10": (10, 32, 50_000, 10_000),
    "stl-10": (10, 96, 105_000, 8_000),
    "cifar-100": (100, 32, 50_000, 10_000),
    "tiny-imagenet": (200, 64, 100_000, 10_000),
    "cifar-10-subset": (),
}
"""Tiny ImageNet has 10,000 images for validation as well. The subset is ours."""


def sizes(quick: bool) -> Drawn:
    """Two rows a dataset, ours and the printed one; ours is empty where the dataset is not here."""
    from workloads.data import DataError, default_data_root
    from workloads.data.images.load import load_images

    rows: list[dict[str, Any]] = []
    for name, printed in _PRINTED.items():
        try:
            images = load_images(name, default_data_root())
        except DataError:
            ours: dict[str, Any] = {}
        else:
            side = images.train.images.shape[-1]
            ours = dict(zip(_SIZES, (len(images.classes), side, len(images.train.labels), len(images.test.labels))))
        for of, values in (("ours", ours), ("printed", dict(zip(_SIZES, printed)))):
            if values or of == "ours":
                rows.append({"dataset": name, "of": of, **{size: values.get(size) for size in _SIZES}})
    return Drawn(tables={"sizes": rows})


SIZES = Computation("thesis-6.2", "Sizes of the image datasets", "thesis 6.6.2.1, table 6.2", "simclr", sizes)
