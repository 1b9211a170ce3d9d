"""Predictor of a trained image encoder: embeddings of images, and class probabilities if a classifier was fitted.

It is exported with ``image.py``, which has the encoder's layers. Both need NumPy, pandas, Pillow, PyTorch and
torchvision, and use CUDA if available.
"""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import nn

from ..encoders.image import image_encoder


class Predictor:
    """Features of images, and class probabilities of a linear classifier on them."""

    def __init__(self, weights: dict[str, NDArray[Any]], config: dict[str, Any]) -> None:
        """Rebuild the encoder.

        Args:
            weights: ``encoder.*``, the encoder's state, and optionally ``classifier.weight`` (C, d) and
                ``classifier.bias`` (C,).
            config: ``encoder``, ``stem`` and ``side`` of the views; ``size`` in pixels, ``mean`` and ``std`` of the
                three channels of the images; ``classes``, the names of the classifier's outputs.
        """
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        tensors = {name: torch.from_numpy(np.array(values)) for name, values in weights.items()}
        side = config.get("side", 32)
        self.encoder = image_encoder(config["encoder"], config["stem"] or "cifar", seed=0, side=side)
        own = {name.removeprefix("encoder."): value for name, value in tensors.items() if name.startswith("encoder.")}
        self.encoder.layers.load_state_dict(own)
        self.encoder.to(self.device).to(memory_format=torch.channels_last).eval()
        self.classifier: tuple[torch.Tensor, torch.Tensor] | None = None
        if "classifier.weight" in tensors:
            self.classifier = (
                tensors["classifier.weight"].to(self.device), tensors["classifier.bias"].to(self.device)
            )  # fmt: skip
        self.classes = np.array(config["classes"], dtype=object)
        self.size = int(config["size"])
        self.mean, self.std = (
            torch.tensor(config[name], device=self.device).view(1, 3, 1, 1) for name in ("mean", "std")
        )

    @torch.inference_mode()
    def predict(self, inputs: pd.DataFrame, *, unit_length: bool = False, batch_size: int = 256) -> pd.DataFrame:
        """Embed the images of ``inputs["image"]``, in the order of the input.

        Args:
            inputs: column ``image``: encoded files (PNG, JPEG ...) as bytes, as base64 text or as a mapping with the
                key ``bytes``, or arrays of 0 to 255, (H, W, 3), (H, W) or (3, H, W), nested lists included. Grey and
                transparent images are converted to RGB; other sizes are scaled by the shorter side and centre-cropped.
            unit_length: divide each embedding by its length, so that inner products are cosines.
            batch_size: number of images encoded at once.

        Returns:
            Column ``embedding``, d numbers per row; with a classifier ``label``, the most probable class, its
            ``probability``, and ``probabilities`` of all classes in the order of training.

        Raises:
            ValueError: no column ``image``, a row that is not an image (the message has its number), or ``batch_size``
                below 1.
        """
        if "image" not in inputs.columns:
            raise ValueError(f"the input needs a column 'image' with images, got {list(inputs.columns)}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        images = inputs["image"].tolist()
        vectors = [
            self._encode(images[first : first + batch_size], first) for first in range(0, len(images), batch_size)
        ]
        features = torch.cat(vectors) if vectors else torch.empty(0, self.encoder.features, device=self.device)
        shown = nn.functional.normalize(features, dim=1) if unit_length else features
        columns: dict[str, Any] = {"embedding": list(shown.cpu().numpy())}
        if self.classifier is not None:
            likely = nn.functional.linear(features, *self.classifier).softmax(1).cpu().numpy()
            best = likely.argmax(1)
            columns["label"] = self.classes[best]
            columns["probability"] = likely[np.arange(len(best)), best]
            columns["probabilities"] = list(likely)
        return pd.DataFrame(columns, index=inputs.index)

    def _encode(self, images: list[Any], first: int) -> torch.Tensor:
        """Features (b, d) of images, the first of which is row ``first`` of the input."""
        pixels = np.stack([_pixels(image, row, self.size) for row, image in enumerate(images, first)])
        inputs = torch.from_numpy(pixels).to(self.device).permute(0, 3, 1, 2).float().div_(255)
        inputs = inputs.sub_(self.mean).div_(self.std).contiguous(memory_format=torch.channels_last)
        allowed = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = False  # as in evaluation; PyTorch's default is TF32
        try:
            features: torch.Tensor = self.encoder(inputs)
        finally:
            torch.backends.cudnn.allow_tf32 = allowed
        return features


def _pixels(image: Any, row: int, size: int) -> NDArray[np.uint8]:
    """The image as RGB with the encoder's size, (size, size, 3). Raises ValueError with the row."""
    try:
        opened = _opened(image)
        opened.load()
        picture = _rgb(opened)
    except MemoryError:
        raise
    except Exception as error:  # Pillow's readers of some fifty formats raise errors of many types
        unknown = isinstance(error, UnidentifiedImageError)
        reason = "it is in no format that is known" if unknown else str(error) or type(error).__name__
        raise ValueError(f"row {row} of the input is no image that can be read: {reason}") from None
    if picture.size != (size, size):
        picture = ImageOps.fit(picture, (size, size), method=Image.Resampling.BILINEAR)
    return np.asarray(picture)


def _rgb(image: Image.Image) -> Image.Image:
    """Convert as in training: 16 bits to 8, transparency composited on white, other modes to RGB."""
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image, np.uint16) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels are single numbers of 32 bits (mode {image.mode})")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _opened(image: Any) -> Image.Image:
    if isinstance(image, dict):  # as in tables of the Hugging Face Hub
        image = image.get("bytes")
    if image is None or isinstance(image, float):
        raise ValueError("it is missing")
    if isinstance(image, str):
        try:
            image = base64.b64decode("".join(image.split()), validate=True)
        except ValueError:
            raise ValueError("text must be the base64 of an image file") from None
    if isinstance(image, bytes | bytearray | memoryview):
        return Image.open(io.BytesIO(image))
    array = _array(image)
    if array.ndim == 3 and array.shape[0] == 3 and array.shape[2] != 3:
        array = array.transpose(1, 2, 0)
    if array.size == 0 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3):
        raise ValueError(f"an array must be (H, W, 3), (H, W) or (3, H, W), got {array.shape}")
    if array.dtype.kind not in "iu" or array.min() < 0 or array.max() > 255:
        raise ValueError(f"an array must hold whole numbers from 0 to 255, got {array.dtype}")
    return Image.fromarray(np.ascontiguousarray(array.astype(np.uint8)))


def _array(image: Any) -> NDArray[Any]:
    """Nested sequences, including arrays of arrays (as read from Parquet), as one array."""
    array = np.asarray(image)
    if array.dtype != object:
        return array
    return np.stack([_array(part) for part in array]) if array.ndim and len(array) else np.empty(0)
