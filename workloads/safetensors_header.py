"""The head of a safetensors file, for files that are written piece by piece."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence


def header(layout: Mapping[str, tuple[str, Sequence[int], int]]) -> bytes:
    """What stands before the tensors, which follow each other in this order.

    Args:
        layout: of each tensor the format's name of its type, its shape, and its number of bytes.
    """
    described = {}
    end = 0
    for name, (kind, shape, size) in layout.items():
        start, end = end, end + size
        described[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(described).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
