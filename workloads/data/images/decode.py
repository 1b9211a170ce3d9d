"""An image file's content as pixels: every mode that PIL reads becomes RGB, every shape a square."""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

if TYPE_CHECKING:
    from workloads.data.images.types import Content

_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")


_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")
"""Of a JPEG, but for those that restart a scan; a 0xff among the data of a scan has a 0 behind it."""


class Undecodable(ValueError):
    """An image that cannot be decoded; the text says why."""


def decode(content: Content) -> Image.Image:
    """The image in RGB.

    Gray is repeated, a palette looked up, CMYK converted, and what is transparent lies on white. The orientation that a
    camera noted is not applied, as by torchvision.

    Raises:
        Undecodable: the content is no image, is cut off or without its end, or has pixels that are no 8 or 16 bit
            colours.
    """
    if isinstance(content, np.ndarray):
        return Image.fromarray(content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about metadata, and about large images
            data = content.read_bytes() if isinstance(content, Path) else content
            image = Image.open(io.BytesIO(data))
            image.load()
        if image.format in ("JPEG", "MPO") and not _ends(data):
            raise Undecodable("it is damaged: a JPEG without an end")
        return _rgb(image)
    except UnidentifiedImageError:
        raise Undecodable("it is in no format that is known") from None
    except (Undecodable, MemoryError):
        raise
    except Exception as error:  # PIL's readers of some fifty formats raise what they like
        raise Undecodable(str(error) or type(error).__name__) from None


def _ends(content: bytes) -> bool:
    """Whether a JPEG's scans are followed by its end. Without one libjpeg makes up what is missing, and says nothing.

    From marker to marker: a segment tells its length, a scan's data last until the next marker. What comes after the
    end, and a thumbnail within a segment, are not looked at.
    """
    if content.endswith(b"\xff\xd9"):  # as nearly all do
        return True
    position = 2  # behind the start of the image
    while marker := _MARKER.search(content, position):
        if marker[1] == b"\xd9":
            return True
        position = marker.end() + int.from_bytes(content[marker.end() : marker.end() + 2], "big")
    return False


def square(image: Image.Image, size: int) -> NDArray[np.uint8]:
    """The middle of an RGB image in (3, size, size): its shorter side resized, the longer one cut off equally."""
    if image.size != (size, size):
        image = ImageOps.fit(image, (size, size), method=Image.Resampling.BILINEAR)
    return np.asarray(image).transpose(2, 0, 1)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode in _SIXTEEN_BITS:
        image = Image.fromarray((np.asarray(image, np.uint16) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise Undecodable(f"its pixels are single numbers of 32 bits (mode {image.mode})")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        below = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(below, image)
    return image.convert("RGB")
