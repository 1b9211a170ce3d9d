"""Input of lightly's contestants: JPEG files of CIFAR's images in memory, with its SimCLRTransform in workers."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pyarrow.parquet as pq
import torch
from lightly.transforms import SimCLRTransform
from PIL import Image
from torch.utils.data import DataLoader, Dataset

SIZE = 32


class Images(Dataset):  # type: ignore[type-arg]
    """JPEG bytes, decoded on access, like files in the page cache."""

    def __init__(self, count: int, transform: SimCLRTransform) -> None:
        file = Path(os.environ["ORCHESTRATOR_DATA"]) / "cifar10" / "train.parquet"
        self.encoded = pq.read_table(file, columns=["image"])["image"][:count].to_pylist()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.encoded)

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        views: list[torch.Tensor] = self.transform(Image.open(io.BytesIO(self.encoded[index])).convert("RGB"))
        return views


def loader(count: int, batch: int, workers: int, blur: float) -> DataLoader[list[torch.Tensor]]:
    """Batches of two views of ``count`` images, shuffled."""
    return DataLoader(
        Images(count, SimCLRTransform(input_size=SIZE, gaussian_blur=blur)),
        batch_size=batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=True,
    )
