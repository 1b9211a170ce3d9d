"""Safetensors files, written in one pass that also computes their digest.

``safetensors.torch.save_file`` writes from copies, and the digest of its file takes a second pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from workloads.safetensors_header import header

if TYPE_CHECKING:
    import torch

DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "complex64": "C64", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
"""Names of PyTorch's types in the format."""

_CHUNK = 2**24


class Written(NamedTuple):
    """Size and SHA-256, in hex, of a file."""

    bytes: int
    sha256: str


def write(file: Path, tensors: Mapping[str, torch.Tensor]) -> Written:
    """Write tensors of any device; each is copied alone, and only where it is not contiguous on the CPU.

    Raises:
        OSError: the file cannot be written.
        TypeError: the format has no such type.
    """
    import torch

    layout = {}
    for name, tensor in tensors.items():
        kind = str(tensor.dtype).removeprefix("torch.")
        if kind not in DTYPES or tensor.layout != torch.strided:
            raise TypeError(f"a checkpoint cannot hold the tensor {name} of type {kind}, {tensor.layout}")
        layout[name] = DTYPES[kind], tensor.shape, tensor.nbytes
    head = header(layout)
    digest = hashlib.sha256(head)
    with file.open("wb") as stream:
        stream.write(head)
        for tensor in tensors.values():
            whole = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
            # One element may have any stride and counts as contiguous.
            content = whole.as_strided((whole.numel(),), (1,)).view(torch.uint8).numpy()
            for first in range(0, len(content), _CHUNK):
                stream.write(content[first : first + _CHUNK].data)
                digest.update(content[first : first + _CHUNK].data)
    return Written(len(head) + sum(tensor.nbytes for tensor in tensors.values()), digest.hexdigest())
