"""The memory that this process may use on a device, and caches that are bounded by it.

Imports PyTorch and NumPy only in its functions: datasets are also looked at by commands that need neither.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

if TYPE_CHECKING:
    import torch

P = ParamSpec("P")
R = TypeVar("R")

CONTEXT_BYTES = 2**29
"""Device memory of a process' CUDA context, which PyTorch's allocator does not count."""

CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Files with the limit of a container's memory, in bytes."""

CONTAINER_USE = (Path("/sys/fs/cgroup/memory.current"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"))
"""Files with the memory that a container uses, in bytes, cached files included."""

CONTAINER_PARTS = (Path("/sys/fs/cgroup/memory.stat"), Path("/sys/fs/cgroup/memory/memory.stat"))
"""Files with its parts by name."""

_CACHED_FILES = ({"inactive_file", "active_file"}, {"total_inactive_file", "total_active_file"})
"""The parts that only cache files, by version of control groups as the files above."""

MEMORY = Path("/proc/meminfo")
"""File with the memory that can be had without swapping, ``MemAvailable``, in kilobytes."""

CACHED_SHARE = 0.5
"""Share of this process' memory that prepared datasets may occupy, on a device or on the host."""


@contextmanager
def not_in_training() -> Iterator[None]:
    """Mark exceptions raised inside the block as not caused by a training step.

    Smaller micro-batches would not help there.
    """
    try:
        yield
    except Exception as error:
        error.in_training = False  # type: ignore[attr-defined]
        raise


def process_bytes(device: torch.device) -> int:
    """Memory that this process may allocate on ``device``: its share of a GPU, or the machine's or container's."""
    if device.type != "cuda":
        return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_bytes_in(CONTAINER_LIMITS)])
    import torch

    if device.index is None:  # which the fraction is refused for
        device = torch.device("cuda", torch.cuda.current_device())
    _, total = torch.cuda.mem_get_info(device)
    return int(total * torch.cuda.get_per_process_memory_fraction(device))


def _bytes_in(files: Sequence[Path]) -> Iterator[int]:
    """The numbers of this container, by version 2 or 1 of control groups; none outside of one."""
    for file in files:
        with suppress(OSError, ValueError):  # a limit of "max" is none
            yield int(file.read_text())


def free_bytes() -> int:
    """Memory that can be had without swapping, on this machine and within its container's limit.

    What only caches files counts as free.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, StopIteration):  # not on Linux
        lines = MEMORY.read_text().splitlines()
        free = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    for limit, used, parts, cached in zip(CONTAINER_LIMITS, CONTAINER_USE, CONTAINER_PARTS, _CACHED_FILES):
        with suppress(OSError, ValueError):  # no such control group, or no limit
            left = int(limit.read_text()) - int(used.read_text())
            free = min(free, left + sum(_sizes(parts, cached)))
    return max(0, free)


def _sizes(parts: Path, names: Collection[str]) -> Iterator[int]:
    """The sizes of some parts of a container's memory, in bytes."""
    for line in parts.read_text().splitlines() if parts.is_file() else ():
        name, _, size = line.partition(" ")
        if name in names:
            yield int(size)


def available_bytes(device: torch.device) -> int:
    """Bytes this process can still allocate on ``device``.

    Free host memory, or the unused part of its GPU share that other processes leave free.
    """
    if device.type != "cuda":
        return free_bytes()
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    allocated = torch.cuda.memory_allocated(device)
    reusable = torch.cuda.memory_reserved(device) - allocated
    return max(0, min(process_bytes(device) - allocated, free + reusable))


def limit_to_share(share: float, device: torch.device) -> None:
    """Cap this process' GPU memory at ``share`` of the device, CUDA context included; ``share >= 1`` sets no cap."""
    import torch

    _, total = torch.cuda.mem_get_info(device)
    fraction = 1.0 if share >= 1 else max(share / 2, share - CONTEXT_BYTES / total)
    torch.cuda.set_per_process_memory_fraction(fraction, device)


def release(device: torch.device) -> None:
    """Return the memory of objects that are no longer used, such as an earlier trial's, to other processes."""
    if device.type == "cuda":
        import torch

        gc.collect()  # a trial's objects refer to each other
        torch.cuda.empty_cache()


def bytes_by_device(values: Any) -> Counter[torch.device]:
    """Bytes of all tensors and arrays that ``values`` refers to, by device. Shared memory counts once."""
    if "torch" not in sys.modules:  # then no dataset has been prepared
        return Counter()

    counted: Counter[torch.device] = Counter()
    buffers = {(device, address): size for device, address, size in _buffers(values, set())}
    for (device, _), size in buffers.items():
        counted[device] += size
    return counted


def _buffers(value: Any, seen: set[int]) -> Iterator[tuple[torch.device, int, int]]:
    """Device, address and bytes of each buffer that ``value`` refers to."""
    import numpy as np
    import torch

    if id(value) in seen or isinstance(value, str | bytes | int | float | type):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        if value.layout == torch.sparse_csr:
            for part in (value.crow_indices(), value.col_indices(), value.values()):
                yield from _buffers(part, set())  # a view of this moment, whose id another object can get
        elif value.layout == torch.strided:
            storage = value.untyped_storage()
            yield value.device, storage.data_ptr(), storage.nbytes()
    elif isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        yield torch.device("cpu"), value.__array_interface__["data"][0], value.nbytes
    elif hasattr(value, "get_total_buffer_size"):  # an Arrow array; its address is that of its first buffer
        columns = value.columns if hasattr(value, "columns") else [value]  # a table or a batch has columns
        chunks = [chunk for column in columns for chunk in getattr(column, "chunks", [column])]
        for buffer in (buffer for chunk in chunks for buffer in chunk.buffers() if buffer):
            yield torch.device("cpu"), buffer.address, buffer.size
    else:
        for item in _items(value):
            yield from _buffers(item, seen)


def _items(value: Any) -> Iterable[Any]:
    """The objects that a collection or an object refers to."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple):
        return () if value and isinstance(value[0], str | int | float) else value
    if hasattr(value, "__dict__"):
        return list(vars(value).values())
    return [getattr(value, field.name) for field in fields(value)] if is_dataclass(value) else ()  # with slots


class BoundedCache(Generic[P, R]):
    """Decorator: the function keeps its results, those used last, while they fit into memory.

    On each device the results of all such functions together occupy at most :data:`CACHED_SHARE` of
    :func:`process_bytes`, memory-mapped files included. The newest result is kept whatever its size. Arguments are
    hashable.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        update_wrapper(self, function)
        self._function = function
        self.misses = 0

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        key = (self, args, tuple(sorted(kwargs.items())))
        if key not in _KEPT:
            self.misses += 1
            _KEPT[key] = self._function(*args, **kwargs)
            while len(_KEPT) > 1 and _is_too_large(_KEPT):
                _KEPT.popitem(last=False)
        _KEPT.move_to_end(key)
        result: R = _KEPT[key]
        return result

    def cache_clear(self) -> None:
        for key in [key for key in _KEPT if key[0] is self]:
            del _KEPT[key]
        self.misses = 0


_KEPT: OrderedDict[tuple[BoundedCache[..., Any], Hashable, Hashable], Any] = OrderedDict()
"""Results of all caches by function and arguments, those used last at the end."""


def _is_too_large(kept: Mapping[Any, Any]) -> bool:
    occupied = bytes_by_device(list(kept.values()))
    return any(size > CACHED_SHARE * process_bytes(device) for device, size in occupied.items())
