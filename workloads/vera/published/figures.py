"""Reliability diagrams and risk-coverage curves of VERA and its baselines on the test part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from workloads.published import Curve, Figure, Line, Panel, Trained
from workloads.vera.published.tables import COMMON, MAIN, ON, ON_EPOCHS, REGIME

_SHOWN = ("VERA", "evidential", "softmax", "temperature scaling")


def diagrams(runs: Sequence[Trained]) -> Iterator[Curve]:
    """The first seed's reliability diagram, with bins of equal mass, and its risk-coverage curve."""
    import pyarrow.parquet as pq

    bins, curve = (
        pq.read_table(runs[0].tables / f"{name}.parquet").to_pydict() for name in ("reliability", "risk_coverage")
    )
    error, area = (runs[0].metrics[f"test/{name}"] for name in ("calib/ece", "selective/score/aurc"))
    yield Curve(
        bins["confidence"], bins["success"], panel="reliability", x_label="confidence c", y_label="success",
        note=f"ECE {error:.3f}",
    )  # fmt: skip
    yield Curve(
        curve["coverage"], curve["risk"], panel="risk and coverage", x_label="coverage", y_label="risk",
        note=f"area {area:.3f}",
    )  # fmt: skip


RELIABILITY = Figure(
    "vera-reliability",
    "Reliability of c, and the risk of answering only the most confident queries",
    "note 1, ours",
    REGIME,
    draw=diagrams,
    panels=(
        Panel(
            "confidence c",
            "calib/ece",
            tuple(Line(name, MAIN.methods[name]) for name in _SHOWN),
        ),
    ),
    common=COMMON,
    on=ON,
    epochs=ON_EPOCHS,
    seeds=1,
)
