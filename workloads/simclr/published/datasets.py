"""Sizes of the image datasets, as printed in table 6.2 and as they are here."""

from __future__ import annotations

from workloads.published import Computation, Drawn, size_table

_SIZES = ("classes", "pixels", "train", "test")

PRINTED = {
    "cifar-10": (10, 32, 50_000, 10_000),
    "stl-10": (10, 96, 105_000, 8_000),
    "cifar-100": (100, 32, 50_000, 10_000),
    "tiny-imagenet": (200, 64, 100_000, 10_000),
    "cifar-10-subset": (),
}
"""Tiny ImageNet has 10,000 images for validation as well. The subset is ours."""


def sizes(quick: bool) -> Drawn:
    """The sizes of the table."""
    from workloads.data import default_data_root
    from workloads.data.images.load import load_images

    def count(name: str) -> tuple[int, ...]:
        images = load_images(name, default_data_root())
        return len(images.classes), images.train.images.shape[-1], len(images.train.labels), len(images.test.labels)

    return size_table(_SIZES, PRINTED, count)


SIZES = Computation("thesis-6.2", "Sizes of the image datasets", "thesis 6.6.2.1, table 6.2", "simclr", sizes)
