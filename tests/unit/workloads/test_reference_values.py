"""Formulas of the thesis against values of independent implementations in double precision.

The other tests of these functions compute the expected values from a formula of their own; a misreading that code and
test share shows only here.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support.user_metrics import per_user
from workloads.losses import contrastive, pairwise
from workloads.recommender.credence import GaussianFactors, Mode, credence, log_order_statistic, prior_log_odds
from workloads.recommender.model import normalised_graph, propagate
from workloads.recommender.product_density import log_density
from workloads.recommender.sequential import updates
from workloads.sampling.bayesian import occupation_prior, risk, unbias


def double(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def means(losses: torch.Tensor) -> float:
    return losses.mean().item()


LOGITS = double([-0.7482, -0.7464, 4.655, 0.4008]), double([2.25, 0.0656, -1.757, -2.4678])
"""Of four positives and of four negatives."""


def test_pairwise_losses_match_reference_values() -> None:
    positive = double([-0.1129, -0.9691, 1.1022, 0.1835, -0.6655, 1.2773])
    negative = double([-0.9352, 1.6865, -0.6678, 1.0684, -1.4298, 1.3354])
    group = double([[-0.1876, -0.232, -0.3125], [-0.0117, -0.1497, 0.0187]])
    group = torch.cat([group, double([[-1.245, -0.723, -0.62], [-2.0007, -0.6999, 1.0711]])])
    own, other = double([-0.4697, 0.2653, 0.0631, 1.0951]), double([0.18, -0.3406, 0.0153, -1.6108])
    i, i1 = double([0.694, -1.4519, -0.7677, 1.7274]), double([0.2881, 0.5732, 0.071, -1.0051])
    i2, j1 = double([-0.8508, -1.4512, -0.2493, 1.3443]), double([0.0573, -0.405, 0.7049, -0.3112])
    j2 = double([-0.6419, -1.1189, -0.0427, 1.7371])
    cut = double([-0.8832, 0.4, -0.337, -1.8126, 1.6386, -0.5818])
    against = double([-0.0208, 1.5856, -0.4422, -0.8877, 0.0812, -0.0255])
    found = [
        means(pairwise.bpr_loss(positive, negative)),
        means(pairwise.gbpr_loss(own, group, other, rho=0.4721)),
        means(pairwise.mpr_loss(i, (i1, i2), (j1, j2), lam=0.6865)),
        means(pairwise.bce_loss(*LOGITS)),
        means(pairwise.truncated_bce_loss(*LOGITS, 0.25)),
        means(pairwise.reweighted_bce_loss(*LOGITS, 0.25)),
        means(pairwise.truncated_bpr_loss(cut, against, 0.7129)),
    ]
    expected = [
        0.9300655895505893, 0.6332611792582867, 0.8479066921363662, 0.7636863681322564, 0.6399024553619611,
        0.5392785605684726, 0.1388524497508762,
    ]  # fmt: skip
    assert found == pytest.approx(expected, rel=1e-9)


def test_dpl_loss_matches_reference_values() -> None:
    positive = double([0.6386, 0.1687, 0.4651])
    negatives = double([[0.294, 1.6473, 1.3968], [1.265, 0.2674, 0.2091], [-0.5862, 0.8298, -1.1091]])
    extra = double([[-0.1174, 0.3745, -0.6126], [0.366, -0.2202, -0.6702], [0.7694, -1.1054, 0.0316]])
    assert means(pairwise.dpl_loss(positive, negatives, extra, tau=0.1)) == pytest.approx(0.7955359147512967, rel=1e-9)
    single = double([1.4669, 1.096, 0.7049]), double([[0.4112], [-0.3337], [-0.3852]])
    found = pairwise.debiased_probability(*single, double([[1.0024], [0.0095], [-0.2063]]), tau=0.06)
    assert found.tolist() == pytest.approx([0.7500245565354823, 0.8106289823702187, 0.7506444812403246], rel=1e-9)


def test_contrastive_losses_match_reference_values() -> None:
    found = contrastive.infonce_loss(double([-0.071, 0.7425, 1.5942]), double([[-0.66], [1.1785], [0.9328]]), 0.5)
    assert means(found) == pytest.approx(0.5753051160710719, rel=1e-9)
    positive = double([-0.4615, 0.6841, -0.6773])
    rows = [[0.377, -1.156, -0.7418, 1.2465, -0.3032], [0.531, 2.9883, 1.3986, -1.7111, -0.2583]]
    negatives = double([*rows, [-0.4503, -1.0971, -0.9456, 0.1909, -0.6614]])
    assert means(contrastive.decoupled_loss(positive, negatives, 0.5)) == pytest.approx(3.508358921101515, rel=1e-9)
    positive, extra = (
        double([-0.8142, 0.9382, -0.9708]),
        double([[-0.4244, -0.517], [0.5645, -0.5064], [0.8355, 0.618]]),
    )
    rows = [[-0.4113, -0.1537, -0.595, -0.273, 0.6035], [0.3837, -0.7602, -0.5422, -0.048, -0.4942]]
    negatives = double([*rows, [0.1722, 0.8563, -0.5923, 0.4827, -0.7769]])
    loss = contrastive.dcl_loss(positive, negatives, extra, tau=0.1, temperature=0.5, floor="cosine")
    assert means(loss) == pytest.approx(2.6581925169124823, rel=1e-9)
    positive, extra = double([0.8568, 0.268, -0.4929]), double([[-0.4614, -0.821], [0.0935, 0.9025], [-0.062, 0.3862]])
    rows = [[0.8701, 0.8781, 0.7586, 0.0218, 0.788], [-0.1326, -0.0514, -0.3378, -0.9834, 0.3762]]
    negatives = double([*rows, [0.9055, 0.3446, -0.7732, 0.1624, -0.8068]])
    loss = contrastive.hcl_loss(positive, negatives, extra, tau=0.05, beta=0.6271, temperature=0.5, floor="none")
    assert means(loss) == pytest.approx(2.3639309798026304, rel=1e-9)


def test_debiased_losses_of_cosines_have_the_bound_of_cosines() -> None:
    """E-DCL: the known positive is the pair's own, and the sum is at least N e^(-1/t): here .5413 for four cosines."""
    positive, negatives = double([0.8911]), torch.full((1, 4), -0.5619, dtype=torch.float64)
    expected = np.log1p(0.5413411329464508 * np.exp(-0.8911 / 0.5))
    for found in (
        contrastive.cosine_dcl_loss(positive, negatives, tau=0.3, temperature=0.5),
        contrastive.cosine_hcl_loss(positive, negatives, tau=0.3, beta=2.0, temperature=0.5),
    ):
        assert found.item() == pytest.approx(expected, rel=1e-9)


def test_bcl_weights_and_loss_match_reference_values() -> None:
    places = double([0.1492, 0.2241, 0.6663, 1.0])
    found = contrastive.bcl_phi(places, 0.9, 0.294)
    expected = [0.11552245505425136, 0.17624729276885728, 0.5863580628715571, 1.0]
    assert found.tolist() == pytest.approx(expected, rel=1e-9)
    found = contrastive.bcl_weights_at(places, alpha=0.8, beta=0.7, tau=0.5)  # Φ is Φ_UN
    expected = [1.1846315789473685, 1.1452105263157897, 0.9124736842105261, 0.7368421052631576]
    assert found.tolist() == pytest.approx(expected, rel=1e-9)
    tied = double([[2.0, 0.0, 1.0, -1.0, -1.0, 1.0, 1.0, -1.0], [-2.0, -1.0, 2.0, 1.0, -1.0, 0.0, 0.0, 0.0]])
    last, middle = (
        contrastive.bcl_weights(row[None], alpha=0.8, beta=0.9, tau=0.1, ties=ties)[0].tolist()
        for row, ties in zip(tied, ("le", "mid"))
    )
    expected = [2.6627218934911228, 0.822615250952467, 1.720028775297997, 0.6841882536529313]
    assert last[:4] == pytest.approx(expected, rel=1e-9)
    expected = [0.45057457381157373, 0.5760316811543198, 2.081599620283955, 1.467399917349772]
    assert middle[:4] == pytest.approx(expected, rel=1e-9)
    rows = [[1.038, -1.4217, -0.394, 1.3245, 0.1262, -0.0881, 0.3433]]
    rows += [[-0.671, -0.2932, -0.1234, -0.0215, 0.6071, 1.1426, -1.0659]]
    negatives = double([*rows, [1.8384, -0.285, 0.1472, -0.7478, 0.6961, -0.5612, 0.3815]])
    loss = contrastive.bcl_loss(
        double([-0.1175, 0.1232, 1.602]), negatives, alpha=0.7258, beta=0.7774, tau=0.05, temperature=0.07
    )
    assert means(loss) == pytest.approx(13.50737014499145, rel=1e-9)


def test_credence_and_its_distribution_match_reference_values() -> None:
    x = double([-2.513, -4.05496, -0.83202, 3.23223, 9.35307])
    logs = GaussianFactors(27, 0.6).log_probabilities(x)
    f = [0.0918853220558337, 0.05274211159633059, 0.12649698791111907, 0.07304211403019886, 0.0017635465294315621]
    F = [0.2050875740042789, 0.09420425188427212, 0.39190180237041616, 0.8542257462163023, 0.9979597572081302]
    g = [0.03768907557406559, 0.009937062331458232, 0.09914879511359262, 0.12478890872532573, 0.003519896932673525]
    assert log_density(x, 27, 0.6).exp().tolist() == pytest.approx(f, rel=1e-8)
    assert logs.log_below.exp().tolist() == pytest.approx(F, rel=1e-7)
    assert log_order_statistic(logs, 2, 2).exp().tolist() == pytest.approx(g, rel=1e-7)
    tail = log_density(double([0.0, 154.81824, 801.12066]), 27, 0.6).tolist()
    assert tail == pytest.approx([-2.02754816030199, -218.3973729412319, -1275.284203933323], rel=1e-9)
    odds = prior_log_odds(double([261, 144, 128, 116, 118, 77, 249, 63]))
    assert odds.sigmoid()[:3].tolist() == pytest.approx([0.8458076036373059, 0.4981737304764575, 0.44002301577882436])
    scores, prior = (
        double([1.356, -1.001, -1.961, 0.312, -2.615, 1.996]),
        double([0.503, 0.426, 0.914, 0.664, 0.186, 0.106]),
    )
    by_mode: dict[Mode, list[float]] = {
        "thesis": [0.08011003733519285, 0.03924677086585938, 0.050133631510761105],
        "mean1": [1.677233200819778, 0.8216946254282664, 1.0496286613334744],
        "bayes": [0.6750476943532959, 0.3042032826920456, 0.788473036199934],
    }
    for mode, expected in by_mode.items():
        found = credence(scores, prior.logit(), GaussianFactors(27, 0.6), mode)
        assert found[:3].tolist() == pytest.approx(expected, rel=1e-6), mode


def test_sgd_step_with_credence_matches_reference_values() -> None:
    """(3.32): all three rows change by gradients at the old values, with the decay as printed."""
    users = np.array([[0.3306, 0.978, -0.5086, 0.7356]], np.float32)
    items = np.array([[0.3691, 0.3834, 0.8018, 0.5074], [0.2351, -0.5906, -0.587, -2.3509]], np.float32)
    updates.step_on_difference(users, items, 0, 0, 1, updates.Rule(updates.BPR, 0.0, 1, 0.05, 0.01), np.float32(0.125))
    expected = [
        [0.3306494369337135, 0.9784484037196788, -0.5078416894138708, 0.7370492877715173],
        [0.36924987806183346, 0.3838876587400882, 0.8014838235299501, 0.5077531020032809],
        [0.23491235943816652, -0.5910747087400882, -0.5866972485299501, -2.351137883253281],
    ]
    np.testing.assert_allclose(np.concatenate([users, items]), expected, rtol=1e-6)


def test_bayesian_sampling_matches_reference_values() -> None:
    found = unbias(double([0.425, 0.903, 0.353, 0.284, 0.187]), double([0.223, 0.466, 0.809, 0.114, 0.964]))
    expected = [0.8249930754316315, 0.10960312825330723, 0.3020305312913963, 0.9514422153964293, 0.13968005497861954]
    assert found.tolist() == pytest.approx(expected, rel=1e-9)
    found = risk(double([0.879, 0.306, 0.31]), double([0.784, 0.985, 0.184]), 4.958)
    assert found.tolist() == pytest.approx([-3.2268722880000005, -1.4898007800000002, -0.029844319999999973], rel=1e-9)
    popularity = double([31, 32, 41, 0, 28, 29, 40, 42])
    by_group = double([[6, 4, 19, 0, 12, 6, 1, 10], [8, 4, 13, 0, 6, 0, 13, 10]])
    by_group = torch.cat([by_group, double([[1, 19, 0, 0, 5, 5, 8, 17], [16, 5, 9, 0, 5, 18, 18, 5]])])
    expected = [0.129565329218107, 0.10396361273554257, 0.1931448992852502, 0.0, 0.1056241426611797]
    assert occupation_prior(popularity, by_group)[1, :5].tolist() == pytest.approx(expected, rel=1e-6)


def test_lightgcn_propagation_matches_reference_values() -> None:
    """E-LGCN: the mean of four layers; user 1 and item 2 have no edge and keep a quarter of E^(0)."""
    users = [[0.8022, 0.6501, -0.489], [0.5732, 0.9291, 0.153], [-1.0621, -0.185, -0.2288], [0.0876, -0.9321, 0.7788]]
    items = [[2.3236, -0.2209, -0.5224], [-0.7539, -1.5762, 0.2104], [-1.8159, -0.47, -0.3836]]
    items += [[0.0472, -1.6914, 0.2959], [0.1341, -1.6263, 0.5344]]
    graph = normalised_graph(torch.tensor([0, 2, 2, 3]), torch.tensor([8, 7, 8, 5]), 9)
    found = propagate(torch.tensor([*users, *items]), [graph] * 3)
    expected = [
        [0.2513828069314592, -0.3813877385465498, -0.019782938500520486], [0.1433, 0.232275, 0.03825],
        [-0.34144623748501673, -1.0041232894371084, 0.09851749024195322], [-0.33315, -1.25415, 0.4946],
    ]  # fmt: skip
    np.testing.assert_allclose(found[:4], expected, rtol=1e-5, atol=1e-6)


def test_metrics_of_a_user_match_reference_values() -> None:
    """E-4.M. Ties are in the order of the items; three items are excluded; two of five places hit."""
    scores = torch.tensor([[-0.2, -2.1, 1.1, 1.0, -1.7, 0.2, -1.1, -1.6, 0.0, 1.1, 0.0, 0.2]])
    relevant, excluded = torch.zeros(2, 1, 12, dtype=torch.bool)
    relevant[0, [0, 2, 4, 8]] = True
    excluded[0, [1, 11, 7]] = True
    found = per_user(scores, relevant, excluded, (5,))
    expected = {
        "precision_at_5": 0.4, "recall_at_5": 0.5, "f1_at_5": 0.4444444444444444, "ndcg_at_5": 0.5413996682199069,
        "map_min_at_5": 0.35, "map_interp_at_5": 0.7, "mrr_at_5": 1.0, "hit_at_5": 1.0, "auc": 0.35,
        "auc_at_5": 0.4166666666666667,
    }  # fmt: skip
    assert {name: value.item() for name, value in found.items()} == pytest.approx(expected, rel=1e-6)
