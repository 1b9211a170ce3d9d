"""Decode image files to square RGB arrays, from every mode that PIL reads."""

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
    """An image that cannot be decoded. The text is the reason."""


def decode(content: Content) -> Image.Image:
    """Decode to RGB. Gray is replicated, palettes and CMYK converted, transparency composited on white.

    The orientation in the metadata is not applied, as in torchvision.

    Raises:
        Undecodable: the content is not an image, is truncated, or has pixels other than 8 or 16 bit colours.
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
    except Exception as error:  # PIL's readers of some fifty formats raise errors of many types
        raise Undecodable(str(error) or type(error).__name__) from None


def _ends(content: bytes) -> bool:
    """Whether the JPEG has its end marker. libjpeg fills in a truncated one silently.

    Goes from marker to marker: a segment contains its length, the data of a scan last until the next marker. Ignores
    what follows the end, and thumbnails within segments.
    """
    if content.endswith(b"\xff\xd9"):  # true of nearly all
        return True
    position = 2  # behind the start of the image
    while marker := _MARKER.search(content, position):
        if marker[1] == b"\xd9":
            return True
        position = marker.end() + int.from_bytes(content[marker.end() : marker.end() + 2], "big")
    return False


def square(image: Image.Image, size: int) -> NDArray[np.uint8]:
    """Centre crop resized to (3, size, size)."""
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
