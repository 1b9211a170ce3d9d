"""The share of embeddings that an append-only index saves, over the number of sessions."""

from __future__ import annotations

from workloads.published import Computation, Curve, Drawn

SESSIONS = range(1, 21)
"""Numbers T of sessions after session 0."""

DOCUMENTS = 8400
"""Documents of the counted collection, in five equal topics; every T of :data:`SESSIONS` divides a half of them."""

PRINTED = (0.79, 0.81)
"""What the notes print as saved (their question two)."""


def savings(quick: bool) -> Drawn:
    """Counted on the prescribed sessions, next to ``1 - 1 / (0.75 (T + 1))`` and the printed range."""
    import numpy as np

    from workloads.lifelong.evaluation import saved
    from workloads.lifelong.sessions import Stream, divide

    topic = np.repeat(np.arange(5), DOCUMENTS // 5).astype(np.int16)
    numbers = list(SESSIONS)[:3] if quick else list(SESSIONS)
    counted = []
    for sessions in numbers:
        arriving = np.bincount(divide(topic, np.arange(DOCUMENTS), Stream(sessions=sessions)).session).tolist()
        counted.append(float(saved(arriving, arriving)[-1]))
    formula = [1 - 1 / (0.75 * (sessions + 1)) for sessions in numbers]
    x = [float(sessions) for sessions in numbers]
    lines = {"counted": counted, "1 - 1 / (.75 (T + 1))": formula}
    lines |= {f"printed: {value:.0%}": [value] * len(x) for value in PRINTED}
    curves = [
        Curve(x, y, name=name, x_label="sessions after session 0", y_label="share of embeddings saved")
        for name, y in lines.items()
    ]
    cells = [
        {"sessions": sessions, "counted": own, "formula": its}
        for sessions, own, its in zip(numbers, counted, formula, strict=True)
    ]
    return Drawn(curves, {"saved": cells})


SAVINGS = Computation(
    "l2r-savings",
    "Embeddings saved by an append-only index over the number of sessions",
    "L2R notes, question two: 79% to 81% of the cost of embedding; ours, for the number of sessions is not printed",
    "lifelong",
    savings,
)
