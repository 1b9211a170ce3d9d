"""Generated images whose classes survive augmentation: shapes, plain or striped, of any brightness, position and size.

The class is one of four shapes with one of two textures. Brightness, tint, position, size, rotation and noise are drawn
again for each image and are independent of the class, so that pixels alone say little about it. The tints are weak:
strong ones would identify the two views of an image, and nothing else would be learned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workloads.data.draws import uniform
from workloads.data.images.types import ImageSource, of_arrays
from workloads.data.source import Dataset

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SHAPES = ("disc", "square", "triangle", "cross")
TEXTURES = ("plain", "striped")
CLASSES = tuple(f"{texture} {shape}" for shape in SHAPES for texture in TEXTURES)


@dataclass(frozen=True, slots=True)
class Planted:
    """Parameters of the generator: ``train`` and ``test`` images of ``size`` x ``size``, classes in turn.

    ``radius``: smallest and largest radius of a shape, as a share of the image's side. ``tint`` and ``noise``: largest
    change of a value of 0 to 255, for all pixels of the shape or the background, and for each pixel separately.
    """

    train: int = 1024
    test: int = 512
    size: int = 32
    radius: tuple[float, float] = (0.25, 0.42)
    tint: int = 24
    noise: int = 16
    seed: int = 40


def generate(planted: Planted) -> ImageSource:
    """Draw the images.

    All draws come from the raw stream of PCG64, and only correctly rounded arithmetic is used, so the result is the
    same on every machine and with every version of NumPy.
    """
    import numpy as np

    count = planted.train + planted.test
    bits = np.random.PCG64(planted.seed)
    labels = np.arange(count) % len(CLASSES)
    inside = _inside(bits, planted, labels)[..., None]
    below = np.floor(256 * uniform(bits, count, 1, 1, 1))
    above = (below + 64 + np.floor(128 * uniform(bits, count, 1, 1, 1))) % 256
    tint = np.floor((2 * planted.tint + 1) * uniform(bits, 2, count, 1, 1, 3)) - planted.tint
    noise = np.floor((2 * planted.noise + 1) * uniform(bits, count, planted.size, planted.size, 3)) - planted.noise
    pixels = np.clip(np.where(inside, above + tint[0], below + tint[1]) + noise, 0, 255).astype(np.uint8)
    train = slice(None, planted.train)
    test = slice(planted.train, None)
    return ImageSource(
        of_arrays(pixels[train], labels[train], "train image"),
        of_arrays(pixels[test], labels[test], "test image"),
        CLASSES,
    )


def _inside(bits: np.random.PCG64, planted: Planted, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which pixels (n, size, size) belong to the shape."""
    import numpy as np

    count = len(labels)
    size = planted.size
    least, most = planted.radius
    radius = size * (least + (most - least) * uniform(bits, count, 1, 1))
    centre = radius + (size - 2 * radius) * uniform(bits, 2, count, 1, 1)
    # Rotation of up to 90 degrees to either side, by the tangent of half the angle: sines differ between machines.
    half = 2 * uniform(bits, count, 1, 1) - 1
    cosine = (1 - half * half) / (1 + half * half)
    sine = 2 * half / (1 + half * half)
    at = np.arange(size) + 0.5
    x = (at[None, None] - centre[0]) / radius
    y = (at[None, :, None] - centre[1]) / radius
    u = cosine * x + sine * y
    v = cosine * y - sine * x
    far = np.maximum(abs(u), abs(v))
    low = np.minimum(abs(u), abs(v))
    shapes = np.stack([u * u + v * v < 1, far < 0.8, (v > -0.6) & (v + 1.8 * abs(u) < 1), (far < 1) & (low < 0.35)])
    shape, texture = np.divmod(labels, len(TEXTURES))
    drawn: NDArray[Any] = shapes[shape, np.arange(count)]
    bands = np.floor(3 * u) % 2 == 0
    drawn &= bands | (texture == 0)[:, None, None]
    return drawn


_DEFAULT = Planted()

SYNTHETIC_IMAGES = Dataset(
    name="synthetic-images",
    summary="shapes, plain and striped, 8 classes, 1,024 + 512 generated images of 32 x 32",
    kind="images",
    version=f"1 {_DEFAULT}",
    reader=lambda _folder: generate(_DEFAULT),
)
