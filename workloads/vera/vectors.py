"""Vectors of all queries and candidates from a frozen encoder, read once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.data.cache import cache_dir, replacing
from workloads.data.conversion_cache import build_once
from workloads.data.digests import digest
from workloads.encoders.sources import TINY, folder_of
from workloads.encoders.text import TextEncoder, encode, load_encoder
from workloads.encoders.tokens import Tokenizer

if TYPE_CHECKING:
    from workloads.contract import Precision

VERSION = 1
"""Of the vectors; part of the cache's file names."""


def load_frozen(
    name: str, max_length: int, vocabulary: Sequence[str], seed: int, precision: Precision
) -> tuple[Tokenizer, TextEncoder]:
    """The encoder, in evaluation mode and without gradients; ``tiny`` has words of ``vocabulary`` and is random."""
    words = vocabulary if name == TINY else ()
    tokenizer, encoder = load_encoder(name, max_length=max_length, texts=words, seed=seed, precision=precision)
    return tokenizer, encoder.eval().requires_grad_(False)


def embed_texts(
    name: str, tokenizer: Tokenizer, encoder: TextEncoder, texts: Sequence[str], device: torch.device
) -> torch.Tensor:
    """The vectors of the texts, (n, d) float32 on the CPU; those of a pretrained encoder are kept in the cache.

    Raises:
        workloads.data.errors.CacheUnwritable: the cache cannot be written.
    """
    if name == TINY:
        return _embed(tokenizer, encoder, texts, device)
    identity = [str(VERSION), digest(folder_of(name)), str(tokenizer.max_length), encoder.precision, *texts]
    path = cache_dir() / "vectors" / f"{hashlib.sha256(chr(0).join(identity).encode()).hexdigest()[:32]}.npy"

    def make() -> None:
        found = _embed(tokenizer, encoder, texts, device)
        with replacing(path) as file:
            np.save(file, found.numpy(), allow_pickle=False)

    return torch.from_numpy(build_once(path, partial(_kept, count=len(texts), dim=encoder.dim), make))


def _embed(tokenizer: Tokenizer, encoder: TextEncoder, texts: Sequence[str], device: torch.device) -> torch.Tensor:
    found = encode(encoder.to(device), tokenizer(list(texts))).cpu()
    encoder.cpu()
    return found


def _kept(path: Path, count: int, dim: int) -> NDArray[Any] | None:
    """The kept vectors; None where there are none or the file is damaged."""
    try:
        found: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return found if found.shape == (count, dim) and bool(np.isfinite(found).all()) else None
