"""Other data than a workload's own, as if it had been loaded: what must not change the training, or must."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workloads.data.retrieval.load import load_retrieval
from workloads.data.retrieval.types import Retrieval


@contextmanager
def prepared_from(dataset: Any, **loaders: Callable[..., Any]) -> Iterator[None]:
    """The module ``dataset`` of a workload loads by ``loaders``, and knows nothing that it prepared otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        for name, loader in loaders.items():
            patch.setattr(dataset, name, loader)
        dataset._prepare.cache_clear()
        yield
    dataset._prepare.cache_clear()


def half_tested(name: str, root: Path, unknown: Any = "refuse") -> Retrieval:
    """The collection without every second query of the test part."""
    whole = load_retrieval(name, root, unknown)
    parts = whole.parts.copy()
    missing = np.flatnonzero(parts == 3)[::2]
    parts[missing] = 2
    return replace(whole, judgements=whole.judgements[~np.isin(whole.judgements[:, 0], missing)], parts=parts)
