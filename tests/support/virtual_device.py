"""A virtual CUDA device: CPU tensors that report ``cuda:0``, with PyTorch's rules about devices enforced.

The arithmetic is real, so control flow that depends on values works as on a GPU. An operation that CUDA would refuse
raises :class:`DeviceError`. Operations that make the host wait for the device are counted by calling function. Needs
nothing but PyTorch. FakeTensorMode has no values, so it stops at the first ``item`` and cannot run an epoch.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
ROOT = Path(__file__).absolute().parents[2]
_WORKLOADS = f"{ROOT / 'workloads'}/"
_SUPPORT = f"{ROOT / 'tests' / 'support'}/"

Tensor = torch.Tensor
Generator = torch.Generator  # the attribute of torch is patched
Base: Any = torch._C.TensorBase
aten = torch.ops.aten

COPIES = {aten.copy_.default, aten.set_.source_Tensor}
INDEXING = {
    aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
}  # fmt: skip
SYNCHRONISING = {
    aten._local_scalar_dense.default: "item", aten.nonzero.default: "nonzero", aten.equal.default: "equal",
    aten.masked_select.default: "masked_select", aten.bincount.default: "bincount",
    aten.repeat_interleave.Tensor: "repeat_interleave", aten._unique2.default: "unique",
    aten.unique_consecutive.default: "unique", aten.unique_dim.default: "unique", aten._linalg_svd.default: "svd",
    aten.allclose.default: "allclose", aten._linalg_check_errors.default: "linalg check",
}  # fmt: skip
"""Operations whose result on the host, or whose output's size, requires a synchronisation."""

NO_SCALARS = {"cat", "stack", "index_select", "gather", "scatter", "mm", "bmm", "addmm", "embedding", "searchsorted"}
"""Operations that accept no CPU tensor with CUDA ones, not even a scalar."""

CONVERSIONS = {"as_tensor", "asarray", "tensor"}
FACTORIES = (
    *sorted(CONVERSIONS), "arange", "empty", "empty_like", "empty_permuted", "empty_strided", "eye", "full",
    "full_like", "hann_window", "linspace", "logspace", "normal", "ones", "ones_like", "rand", "rand_like", "randint",
    "randint_like", "randn", "randn_like", "randperm", "scalar_tensor", "tril_indices", "triu_indices", "zeros",
    "zeros_like",
)  # fmt: skip


class DeviceError(RuntimeError):
    """CUDA would have refused this operation."""


class Log:
    """What happened on the device, by place: ``syncs``, blocking ``uploads`` and all ``copies`` from the host,
    blocking or not.

    ``errors`` are the refused operations, of which there is at most one unless ``strict`` is False. Keys are
    (kind, place); a place is ``file:function`` of the innermost frame in ``workloads/``, or else ``file:line`` of the
    innermost frame in the project. ``lines`` are the lines of each place. Clear the log between phases to count each
    apart.
    """

    def __init__(self, strict: bool = True) -> None:
        self._strict = strict
        self.clear()

    def refuse(self, message: str) -> None:
        self.errors[message, _place()[0]] += 1
        if self._strict:
            raise DeviceError(message)

    def sync(self, kind: str) -> None:
        """Count that the host waits for the device."""
        self._count(self.syncs, kind)

    def copy(self, kind: str, blocking: bool = True) -> None:
        """Count a copy from the host; of ``copies`` only those that no other thread makes ahead of a step."""
        if threading.current_thread() is threading.main_thread():
            self._count(self.copies, kind)
        if blocking:
            self._count(self.uploads, kind)

    def _count(self, counter: Counter[tuple[str, str]], kind: str) -> None:
        place, line = _place()
        counter[kind, place] += 1
        self.lines[place].add(line)

    def clear(self) -> None:
        self.lines: defaultdict[str, set[int]] = defaultdict(set)
        self.errors: Counter[tuple[str, str]] = Counter()
        self.syncs: Counter[tuple[str, str]] = Counter()
        self.uploads: Counter[tuple[str, str]] = Counter()
        self.copies: Counter[tuple[str, str]] = Counter()


def device_of(value: Any) -> torch.device:
    """Virtual device of a tensor or generator."""
    if isinstance(value, Generator):
        # Operations receive another Python object of the same generator.
        return CUDA if value._cdata in _GENERATORS else CPU  # type: ignore[attr-defined]
    device: torch.device = getattr(value, "_virtual", CPU)
    return device


def _on_device(value: Any) -> bool:
    return device_of(value).type == "cuda"


def _anywhere(tensor: Tensor) -> bool:
    """Whether C++ created the tensor, such as autograd's zeros, which on CUDA have the device of the other tensors."""
    return getattr(tensor, "_unknown", False)


def _pinned(tensor: Tensor) -> bool:
    return getattr(tensor, "_pinned", False)


def _frames() -> Iterator[FrameType]:
    """Frames of the stack, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _place() -> tuple[str, int]:
    """Function of the innermost frame in the workloads, else line of the innermost in the project; and its line."""
    other = "?", 0
    for frame in _frames():
        code = frame.f_code
        if code.co_filename.startswith(_WORKLOADS):
            # A comprehension has a frame of its own up to Python 3.11 and none from 3.12: name its function.
            function = code.co_qualname.partition(".<locals>.<")[0].rpartition(".")[2]
            return f"{code.co_filename.removeprefix(_WORKLOADS)}:{function}", frame.f_lineno
        ours = code.co_filename.startswith(f"{ROOT}/") and "site-packages" not in code.co_filename
        if other[0] == "?" and ours and not code.co_filename.startswith(_SUPPORT):
            other = f"{code.co_filename.removeprefix(f'{ROOT}/')}:{frame.f_lineno}", frame.f_lineno
    return other


@functools.cache
def _written(func: Any) -> list[tuple[int, str]]:
    """Position and name of the arguments that the operation writes to."""
    arguments = enumerate(func._schema.arguments)
    return [(i, each.name) for i, each in arguments if each.alias_info is not None and each.alias_info.is_write]


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Checks each operation and marks its outputs."""

    def __init__(self, log: Log) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._log = log

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        there = [each for each in tensors if _on_device(each)]
        generator = kwargs.get("generator")
        if generator is not None and any(device_of(generator) != device_of(each) for each in tensors):
            self._log.refuse(f"{_name(func)}: the generator is on {device_of(generator)}, the tensor is not")
        if there:
            here = [each for each in tensors if not _on_device(each) and not _anywhere(each)]
            written = tree_leaves([args[i] if i < len(args) else kwargs.get(name) for i, name in _written(func)])
            self._check(func, args, here, written)
            self._count(func, args, kwargs)
            for each in written:
                if isinstance(each, Tensor) and _anywhere(each):
                    each._virtual, each._unknown = CUDA, False  # type: ignore[attr-defined]
        output = func(*args, **kwargs)
        device = device_of(args[0]) if func in COPIES else CUDA if there else CPU
        for each in tree_leaves(output):
            if isinstance(each, Tensor) and not any(each is given for given in tensors):
                each._virtual = device  # type: ignore[attr-defined]
                each._unknown = not there and all(map(_anywhere, tensors))  # type: ignore[attr-defined]
                each._pinned = func.is_view and any(map(_pinned, tensors))  # type: ignore[attr-defined]
        return output

    def _check(self, func: Any, args: Any, here: list[Tensor], written: list[Any]) -> None:
        """Raise if the operation mixes tensors of both devices. ``here``: those on the CPU."""
        if not here or func in COPIES:
            return
        name = _name(func)
        if func in INDEXING:
            values = args[2] if len(args) > 2 else None
            if not _on_device(args[0]) and not _anywhere(args[0]):
                self._log.refuse(f"{name}: the tensor is on the CPU, its index or values on cuda")
            if isinstance(values, Tensor) and values.dim() and any(values is each for each in here):
                self._log.refuse(f"{name}: the values are on the CPU, the tensor on cuda")
            if any(each.dim() for each in here if each is not values):
                self._log.copy("index")
        elif wrong := [tuple(each.shape) for each in here if each.dim() or name in NO_SCALARS]:
            self._log.refuse(f"{name}: tensors of shape {wrong} are on the CPU, others on cuda")
        elif any(each is output for each in here for output in written):
            self._log.refuse(f"{name}: the tensor that is written to is on the CPU, others are on cuda")

    def _count(self, func: Any, args: Any, kwargs: Any) -> None:
        """Count synchronisations of the host, and copies for which the device waits."""
        if func in SYNCHRONISING and kwargs.get("output_size") is None:
            self._log.sync(SYNCHRONISING[func])
        if func in INDEXING:
            masks = [each for each in args[1] if isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8)]
            values = args[2] if len(args) > 2 else None
            # A mask and one value on the host, as a number is, are filled in without the mask's positions.
            if any(map(_on_device, masks)) and (values is None or values.numel() > 1 or _on_device(values)):
                self._log.sync("boolean mask")
        if func is aten.copy_.default:
            target, source, non_blocking = (*args, kwargs.get("non_blocking", False))[:3]
            if not _on_device(target) and not _anywhere(target):
                if not (non_blocking and _pinned(target)):
                    self._log.sync("copy to the host")
            elif not _on_device(source) and not _anywhere(source):
                self._log.copy("copy", blocking=not (non_blocking and _pinned(source)))


def _name(func: Any) -> str:
    name: str = func._schema.name.partition("::")[2]
    return name


class _Generator(Generator):
    def __new__(cls, device: Any = "cpu") -> _Generator:
        generator = super().__new__(cls, "cpu")  # type: ignore[call-arg]
        if torch.device(device).type == "cuda":
            _GENERATORS[generator._cdata] = generator  # type: ignore[attr-defined]
        return generator

    def __init__(self, device: Any = "cpu") -> None:
        pass


_GENERATORS: weakref.WeakValueDictionary[int, _Generator] = weakref.WeakValueDictionary()
"""Tensors on the virtual device, by the address of the object in C++."""


@contextlib.contextmanager
def virtual_cuda(strict: bool = True) -> Iterator[Log]:
    """A virtual ``cuda:0`` within the block. All patches of PyTorch are undone at its end.

    ``strict=False`` collects refused operations in ``errors`` and continues.
    """
    # What keeps references to the patched functions is imported before.
    import torch._dynamo
    import torch.distributed.tensor  # noqa: F401
    import torch.optim  # noqa: F401

    log = Log(strict)
    with contextlib.ExitStack() as stack:

        def patch(owner: Any, name: str, value: Any) -> None:
            missing = object()
            before = vars(owner).get(name, missing)
            setattr(owner, name, value)
            stack.callback(lambda: delattr(owner, name) if before is missing else setattr(owner, name, before))

        _patch_tensors(patch, log)
        for name in FACTORIES:
            patch(torch, name, _factory(getattr(torch, name), name, log))
        patch(torch, "Generator", _Generator)
        patch(torch, "compile", lambda model=None, **options: model if model is not None else lambda wrapped: wrapped)
        patch(torch.nn.functional, "one_hot", _one_hot(torch.nn.functional.one_hot))
        _patch_cuda(patch, log)
        stack.enter_context(_Mode(log))
        yield log


def _patch_tensors(patch: Callable[[Any, str, Any], None], log: Log) -> None:
    def moved(self: Tensor, device: torch.device, non_blocking: bool = False) -> Tensor:
        if device_of(self).type == device.type:
            return self
        if not _on_device(self):
            log.copy("to the device", blocking=not (non_blocking and _pinned(self)))
        elif any(frame.f_code.co_filename.endswith("clip_grad.py") for frame in _frames()):
            # It asks for the device in C++, which does not know of ours, and copies to that one.
            return self
        elif not non_blocking:
            log.sync("to the host")
        copied: Tensor = Base.clone(self)
        copied._virtual = device  # type: ignore[attr-defined]
        return copied

    def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        device, dtype, copy, rest = _parsed(list(args), dict(kwargs))
        non_blocking = rest.pop("non_blocking", False)
        if device is not None and device.type == "meta":
            return Base.to(self, device)  # type: ignore[no-any-return]
        out = self if device is None else moved(self, device, non_blocking)
        if dtype is not None or rest or (copy and out is self):
            where = device_of(out)
            out = Base.to(out, dtype=dtype or out.dtype, copy=copy and out is self, **rest)
            out._virtual = where
        return out

    def on_host(name: str) -> Callable[..., Any]:
        real = getattr(Base, name, None) or getattr(Tensor, name)

        def call(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            if _on_device(self):
                log.refuse(f"{name} of a CUDA tensor: copy it to the host first")
            return real(self, *args, **kwargs)

        return call

    def tolist(self: Tensor) -> Any:
        if _on_device(self):
            log.sync("tolist")
        return Base.tolist(self)

    def pinned(self: Tensor, *args: Any) -> Tensor:
        if _on_device(self):
            log.refuse("only dense CPU tensors can be pinned")
        copied: Tensor = Base.clone(self)
        copied._pinned = True  # type: ignore[attr-defined]
        return copied

    def get_data(self: Tensor) -> Tensor:
        data: Any = Base.data.__get__(self)
        data._virtual = device_of(self)
        return data  # type: ignore[no-any-return]

    def set_data(self: Tensor, value: Tensor) -> None:
        Base.data.__set__(self, value)
        self._virtual = device_of(value)  # type: ignore[attr-defined]

    def new(name: str) -> Callable[..., Tensor]:
        real = getattr(Base, name)

        def made(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            device = _device(kwargs.pop("device", None)) or device_of(self)
            out: Any = real(self, *args, **kwargs)
            out._virtual, out._unknown = device, False
            if name == "new_tensor" and device.type == "cuda":
                log.copy(name)
            return out  # type: ignore[no-any-return]

        return made

    def parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        out = real_parameter(cls, data, requires_grad)
        out._virtual = device_of(data)
        return out

    real_parameter = torch.nn.Parameter.__new__
    patch(torch.nn.Parameter, "__new__", staticmethod(parameter))
    real_device = Base.device.__get__
    patch(Tensor, "device", property(lambda self: CUDA if _on_device(self) else real_device(self)))
    patch(Tensor, "is_cuda", property(_on_device))
    patch(Tensor, "is_cpu", property(lambda self: not _on_device(self)))
    patch(Tensor, "data", property(get_data, set_data))
    patch(Tensor, "to", to)
    patch(Tensor, "cuda", lambda self, device=None, non_blocking=False, **kwargs: moved(self, CUDA, non_blocking))
    patch(Tensor, "cpu", lambda self, *args, **kwargs: moved(self, CPU))
    patch(Tensor, "numpy", on_host("numpy"))
    patch(Tensor, "__array__", on_host("__array__"))
    patch(Tensor, "tolist", tolist)
    patch(Tensor, "pin_memory", pinned)
    patch(Tensor, "is_pinned", lambda self, *args: _pinned(self))
    for name in ("new_zeros", "new_ones", "new_empty", "new_full", "new_tensor"):
        patch(Tensor, name, new(name))


def _parsed(
    args: list[Any], kwargs: dict[str, Any]
) -> tuple[torch.device | None, torch.dtype | None, bool, dict[str, Any]]:
    """Device, dtype, ``copy`` and the other arguments of ``Tensor.to``."""
    device = _device(kwargs.pop("device", None))
    dtype = kwargs.pop("dtype", None)
    other = kwargs.pop("other", None)
    while args and not isinstance(args[0], bool):
        value = args.pop(0)
        if isinstance(value, Tensor):
            other = value
        elif isinstance(value, torch.dtype):
            dtype = value
        elif value is not None:
            device = _device(value)
    if other is not None:
        device = device_of(other)
        dtype = other.dtype
    if args:
        kwargs["non_blocking"] = args.pop(0)
    copy = bool(args.pop(0) if args else kwargs.pop("copy", False))
    if kwargs.get("memory_format", 0) is None:
        del kwargs["memory_format"]
    return device, dtype, copy, kwargs


def _device(value: Any) -> torch.device | None:
    if value is None:
        return None
    device = CUDA if isinstance(value, int) else torch.device(value)
    return CUDA if device.type == "cuda" else device


def _factory(real: Callable[..., Any], name: str, log: Log) -> Callable[..., Any]:
    """Wrap a factory function of ``torch`` for the virtual device."""

    @functools.wraps(real)
    def made(*args: Any, **kwargs: Any) -> Any:
        device = _device(kwargs.pop("device", None))
        source = args[0] if args and isinstance(args[0], Tensor) else None
        where = device or (device_of(source) if source is not None else CPU)
        generator = kwargs.get("generator")
        if generator is not None and device_of(generator).type != where.type:
            log.refuse(f"{name}: generator on {device_of(generator)}, tensor on {where}")
        pinned = kwargs.pop("pin_memory", False)
        if where.type not in ("cuda", "cpu"):
            kwargs["device"] = where
        if name in CONVERSIONS and source is not None:
            args = (source.to(where), *args[1:])
        elif name in CONVERSIONS:
            if any(map(_on_device, tree_leaves(args))):
                log.sync("tensor of device values")
            if where.type == "cuda":
                log.copy(name)
        out = real(*args, **kwargs)
        if not args or out is not args[0]:
            out._virtual, out._unknown, out._pinned = where, False, pinned
        return out

    return made


def _one_hot(real: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap ``one_hot``, which reads its input's range only on the CPU."""

    def one_hot(index: Tensor, num_classes: int = -1) -> Tensor:
        if not _on_device(index):
            return real(index, num_classes)
        size = num_classes if num_classes >= 0 else int(index.max()) + 1
        return index.new_zeros(*index.shape, size).scatter_(-1, index.unsqueeze(-1), 1)

    return one_hot


def _patch_cuda(patch: Callable[[Any, str, Any], None], log: Log) -> None:
    """``torch.cuda``, mixed precision and the global generators, as used by the workloads."""
    real_autocast = torch.autocast

    class Autocast(real_autocast):  # type: ignore[valid-type, misc]
        def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
            super().__init__("cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    real_fork = torch.random.fork_rng
    patch(torch, "autocast", Autocast)
    patch(torch.amp, "autocast", Autocast)
    patch(torch.random, "fork_rng", lambda devices=None, **options: real_fork(devices=[]))
    answers: dict[str, Any] = {
        "is_available": True, "device_count": 1, "current_device": 0, "set_device": None, "get_device_name": "virtual",
        "get_device_capability": (9, 0), "is_bf16_supported": True, "manual_seed_all": None,
        "mem_get_info": (2**36, 2**37), "memory_allocated": 0, "memory_reserved": 0, "max_memory_allocated": 0,
        "reset_peak_memory_stats": None, "empty_cache": None, "set_per_process_memory_fraction": None,
    }  # fmt: skip
    for name in ("_cuda_graph_capture_health_check", "_accelerator_graph_capture_health_check"):  # asks the driver
        if hasattr(torch.optim.Optimizer, name):
            patch(torch.optim.Optimizer, name, lambda self: None)
    for name, answer in answers.items():
        patch(torch.cuda, name, lambda *args, answer=answer, **kwargs: answer)

    def fraction(device: Any = 0) -> float:
        if getattr(device, "index", device) is None:
            raise ValueError(f"Expected a torch.device with a specified index or an integer, but got:{device}")
        return 1.0

    def synchronize(*args: Any) -> None:
        log.sync("synchronize")

    patch(torch.cuda, "get_per_process_memory_fraction", fraction)

    patch(torch.cuda, "synchronize", synchronize)
