"""Vectors of all queries and candidates by a frozen encoder, computed once and cached."""

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
    from workloads.encoders.pooling import Pooling

VERSION = 1
"""Version of the vectors. Part of the cached files' names."""


def load_frozen(
    name: str, max_length: int, pooling: Pooling, vocabulary: Sequence[str], seed: int, precision: Precision
) -> tuple[Tokenizer, TextEncoder]:
    """Load the encoder, in evaluation mode and without gradients. ``tiny`` is random, with words of ``vocabulary``."""
    words = vocabulary if name == TINY else ()
    tokenizer, encoder = load_encoder(
        name, max_length=max_length, pooling=pooling, texts=words, seed=seed, precision=precision
    )
    return tokenizer, encoder.eval().requires_grad_(False)


def embed_texts(
    name: str, tokenizer: Tokenizer, encoder: TextEncoder, texts: Sequence[str], device: torch.device
) -> torch.Tensor:
    """The vectors of the texts, (n, d) float32, on the CPU. Those of a pretrained encoder are cached.

    Raises:
        workloads.data.errors.CacheUnwritable: the cache cannot be written.
    """
    if name == TINY:
        return _embed(tokenizer, encoder, texts, device)
    settings = [str(tokenizer.max_length), encoder.pooling, encoder.precision]
    identity = [str(VERSION), digest(folder_of(name)), *settings, *texts]
    path = cache_dir() / "vectors" / f"{hashlib.sha256(chr(0).join(identity).encode()).hexdigest()[:32]}.npy"

    def make() -> None:
        vectors = _embed(tokenizer, encoder, texts, device)
        with replacing(path) as file:
            np.save(file, vectors.numpy(), allow_pickle=False)

    return torch.from_numpy(build_once(path, partial(_cached, count=len(texts), dim=encoder.dim), make))


def _embed(tokenizer: Tokenizer, encoder: TextEncoder, texts: Sequence[str], device: torch.device) -> torch.Tensor:
    vectors = encode(encoder.to(device), tokenizer(list(texts))).cpu()
    encoder.cpu()
    return vectors


def _cached(path: Path, count: int, dim: int) -> NDArray[Any] | None:
    """The cached vectors; None if the file is missing or damaged."""
    try:
        vectors: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return vectors if vectors.shape == (count, dim) and bool(np.isfinite(vectors).all()) else None
