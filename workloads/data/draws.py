"""Random numbers for generated datasets, from the raw stream of PCG64: the same on every machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def uniform(bits: np.random.PCG64, *shape: int) -> NDArray[np.float64]:
    """Uniform on [0, 1), 53 bits."""
    high: NDArray[Any] = bits.random_raw(shape) >> 11
    return high.astype("float64") * 2.0**-53


def below(bits: np.random.PCG64, limit: int) -> int:
    """Random integer from 0 to ``limit - 1``."""
    return int(bits.random_raw() % limit)


def distinct(bits: np.random.PCG64, limit: int, count: int) -> list[int]:
    """``count`` different integers below ``limit``, in any order."""
    draws = sorted((int(draw), number) for number, draw in enumerate(bits.random_raw(limit)))
    return [number for _, number in draws[:count]]
