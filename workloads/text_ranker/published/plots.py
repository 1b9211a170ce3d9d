"""The note's plots of RankNet's loss against the difference of scores, and the same for the losses it leaves blank."""

from __future__ import annotations

from workloads.published import Computation, Curve, Drawn

SIGMAS = (1.0, 0.5, 2.0, 5.0)
"""σ = 1 is the note's first plot; the note does not give the σ of its second plot."""

PREFERENCES = {1.0: "S = 1", 0.0: "S = 0", -1.0: "S = -1"}

_ENDS, _POINTS, _QUICK = 5.0, 101, 11


def loss_curves(quick: bool) -> Drawn:
    """RankNet by σ (S = 1, as in the note) and by S (σ = 1), its gradient, and margin ranking by grade gap.

    The table shows that a larger σ gives a larger loss for a wrong order but a smaller one for a right order (E-R2).
    """
    import torch

    from workloads.losses.ranknet import adaptive_margin_ranking_loss, ranknet_loss

    difference = torch.linspace(-_ENDS, _ENDS, _QUICK if quick else _POINTS, dtype=torch.float64)
    zero = torch.zeros_like(difference)
    one = torch.ones_like(difference)

    def curve(panel: str, name: str, values: torch.Tensor, label: str = "loss") -> Curve:
        return Curve(difference.tolist(), values.tolist(), name=name, panel=panel, x_label="s_i - s_j", y_label=label)

    curves = []
    rows = []
    for sigma in SIGMAS:
        scores = difference.clone().requires_grad_()
        values = ranknet_loss(scores, zero, one, sigma)
        (gradient,) = torch.autograd.grad(values.sum(), scores)
        curves.append(curve("RankNet, S = 1", f"σ = {sigma:g}", values.detach()))
        curves.append(curve("RankNet's gradient, S = 1", f"σ = {sigma:g}", gradient, "dL / ds_i"))
        at = {d: ranknet_loss(torch.tensor(d), torch.tensor(0.0), torch.tensor(1.0), sigma) for d in (-2.0, 0.0, 2.0)}
        rows.append({"σ": sigma, **{f"loss at s_i - s_j = {d:g}": value.item() for d, value in at.items()}})
    for preference, name in PREFERENCES.items():
        curves.append(curve("RankNet, σ = 1", name, ranknet_loss(difference, zero, preference * one)))
    for gap in (1, 2, 3, 4):
        values = adaptive_margin_ranking_loss(difference, zero, gap * one, zero, gap_max=4.0)
        name = "gap 4 of 4, the plain loss" if gap == 4 else f"gap {gap} of 4"
        curves.append(curve("margin ranking, m = 1", name, values))
    return Drawn(curves=tuple(curves), tables={"sigma": rows})


LOSS_PLOTS = Computation(
    "ranknet-losses",
    "RankNet's loss by σ and S, and margin ranking's by the gap of grades",
    "the note's two plots (σ = 1 and another); E-R1 to E-R5",
    "text_ranker",
    loss_curves,
)
