"""The sampler benchmark: the least memory traffic of BPR, and options that are refused."""

from __future__ import annotations

import sys
from typing import Any

import pytest


@pytest.fixture
def samplers() -> Any:
    import samplers

    return samplers


def test_least_traffic_of_a_bpr_epoch_matches_hand_counts(samplers: Any) -> None:
    """10 interactions of 3 nodes in batches of 4 take 3 steps; there are 7 nodes of 2 floats."""
    rows = 10 * 3 * (8 + 8 + 2 * 4 + 2 * 2 * 4)  # indices written and read; rows gathered; gradient read and written
    dense = 7 * 2 * 4 * (1 + 4 + 3)  # cleared; table, gradient, 2 moments read; all but gradient written
    assert samplers.bpr_bytes(10, 7, 2, 4) == rows + 3 * dense


def test_bandwidth_ratio_is_relative_to_the_peak(samplers: Any) -> None:
    class Model:
        interactions, least_bytes = 1000, 4_000_000_000

    bench = samplers.Benchmark("none", 1)
    bench.samples["BPR, here"] = [500.0]  # two seconds an epoch
    samplers._bandwidth(bench, "here", Model(), 20.0)
    (row,) = bench.rows
    assert (row.ours, row.ratio) == (2.0, 0.1)


def test_methods_include_bcl_with_the_default_alpha(samplers: Any) -> None:
    assert any(method.get("loss") == "bcl" and "alpha" not in method for method in samplers.METHODS.values())


@pytest.mark.parametrize("words", [["--peak", "0"], ["--only", "nobody"]])
def test_zero_peak_and_unknown_method_are_refused(
    words: list[str], samplers: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["samplers.py", *words])
    with pytest.raises(SystemExit) as ended:
        samplers.main()
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err
