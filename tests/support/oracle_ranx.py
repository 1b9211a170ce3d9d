"""ranx, a library of ranking metrics, as an oracle: in this process, without compilation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest


def ranx_scores(
    judged: Mapping[str, Mapping[str, int]], runs: Mapping[str, Mapping[str, float]], names: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Each metric by its name in ranx, for each query; skips if ranx is not installed.

    Compiling ranx takes longer than running it, so numba's compiler is off while ranx is imported and used.
    """
    numba = pytest.importorskip("numba")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba.config, "DISABLE_JIT", True)
        ranx = pytest.importorskip("ranx")
        run = ranx.Run(runs)
        ranx.evaluate(ranx.Qrels(judged), run, list(names))
        return {name: {query: float(value) for query, value in run.scores[name].items()} for name in names}
