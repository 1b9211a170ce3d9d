"""The loss of a step, compared with formulas over the drawn nodes: each loss gets its scores and parameters."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit, logsumexp

from workloads.contract import Runtime
from workloads.data import DataError, Interactions, load_interactions
from workloads.losses.contrastive import alpha_from_auc, bcl_weights_at
from workloads.recommender import workload as module
from workloads.recommender.batches import batches
from workloads.recommender.credence import GaussianFactors, credence, prior_log_odds
from workloads.recommender.dataset import prepare
from workloads.recommender.loss_calls import Scores, loss_settings
from workloads.recommender.losses import LOSSES
from workloads.recommender.params import Params
from workloads.recommender.quality import roc_auc
from workloads.recommender.workload import Recommender

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")
RUNTIME = Runtime(device=CPU, data=Path(), seed=3, epochs=2)
Array = np.ndarray[Any, Any]


def build(runtime: Runtime = RUNTIME, **params: Any) -> Recommender:
    """A workload whose scores are as large as after training; near 0 the losses would hardly differ."""
    batch = {} if params.get("optimizer") == "sgd" else {"batch_size": 256}
    workload = Recommender(Params(dim=8, **batch, **params), runtime)
    with torch.no_grad():
        workload.model.embedding.mul_(6)
    return workload


def softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


def bcl(i: Array, j: Array, m: Array) -> Array:
    place = (j[:, :, None] >= j[:, None, :]).mean(2)
    weights = bcl_weights_at(torch.from_numpy(place), alpha=0.9, beta=0.7, tau=0.1).numpy()
    return logsumexp(np.c_[i, j], axis=1, b=np.c_[np.ones(len(i)), weights]) - i


def dcl(i: Array, j: Array, positives: Array, weights: Array | float = 1.0) -> Array:
    among = ((weights * np.exp(j)).sum(1) - j.shape[1] * 0.1 * np.exp(positives).mean(1)) / 0.9
    among = np.maximum(among, j.shape[1] * np.exp(j).min(1))
    return -np.log(np.exp(i) / (np.exp(i) + among))


CASES: dict[str, tuple[dict[str, Any], Callable[[Array, Array, Array], Array]]] = {
    "bpr": ({}, lambda i, j, m: softplus(j[:, 0] - i)),
    "bce": ({}, lambda i, j, m: (softplus(-i) + softplus(j[:, 0])) / 2),
    "infonce": ({"negatives": 5, "temperature": 0.5}, lambda i, j, m: logsumexp(2 * np.c_[i, j], axis=1) - 2 * i),
    "decoupled": ({"negatives": 5}, lambda i, j, m: logsumexp(j, axis=1) - i),
    "dcl": ({"negatives": 5, "positives": 3, "tau": 0.1}, lambda i, j, m: dcl(i, j, np.c_[i, m])),
    "hcl": (
        {"negatives": 5, "tau": 0.1, "beta": 2.0},
        lambda i, j, m: dcl(i, j, i[:, None], np.exp(2 * j) / np.exp(2 * j).mean(1, keepdims=True)),
    ),
    "dpl": (
        {"negatives": 4, "positives": 3, "tau": 0.1},
        lambda i, j, m: (
            -np.log(np.maximum((expit(i[:, None] - j).mean(1) - 0.1 * expit(i[:, None] - m).mean(1)) / 0.9, 0.01))
        ),
    ),
    "bcl": ({"negatives": 5, "tau": 0.1, "alpha": 0.9, "beta": 0.7}, bcl),
    "gbpr": ({"rho": 0.3}, lambda i, j, m: softplus(j[:, 0] - 0.3 * np.c_[i, m].mean(1) - 0.7 * i)),
    "mpr": (
        {"lam": 0.3},
        lambda i, j, m: softplus(
            -(0.3 * (i - j[:, 1] - (j[:, 0] - j[:, 1])) + 0.7 * (j[:, 0] - j[:, 1] - (m[:, 0] - m[:, 1])))
        ),
    ),
    "denoise_truncated_bpr": (
        {"threshold": 0.8},
        lambda i, j, m: softplus(j[:, 0] - i) * (softplus(j[:, 0] - i) <= 0.8),
    ),
    "denoise_reweighted": (
        {"beta": 0.5},
        lambda i, j, m: (expit(i) ** 0.5 * softplus(-i) + expit(-j[:, 0]) ** 0.5 * softplus(j[:, 0])) / 2,
    ),
}


@pytest.mark.parametrize("backbone", ["mf", "lightgcn"])
@pytest.mark.parametrize("loss", sorted(CASES))
def test_loss_of_a_step_matches_the_formula(loss: str, backbone: Any) -> None:
    params, formula = CASES[loss]
    workload = build(replace(RUNTIME, steps_per_epoch=1), loss=loss, backbone=backbone, **params)
    table = workload.model.embeddings().detach().double().numpy().copy()
    (batch,) = batches(workload.data, workload.draws, 256, workload.runtime, 1)
    user, item, *others = (table[row] for row in batch.nodes.numpy())
    extras, negatives = others[: workload.draws.extras], others[workload.draws.extras :]
    anchor = item if loss == "gbpr" else user
    scores = [(user * item).sum(1), *((user * row).sum(1) for row in negatives)]
    further = np.array([(anchor * row).sum(1) for row in extras]).T
    expected = formula(scores[0], np.array(scores[1:]).T, further)
    assert workload.train_epoch(1)["loss"] == pytest.approx(expected.mean(), rel=1e-5)


@pytest.mark.slow
def test_the_supervised_oracle_leaves_false_negatives_out() -> None:
    """The loss is (5.27) with the planted truth, and its AUC by that truth is higher than that of DPL."""
    workload = build(replace(RUNTIME, steps_per_epoch=1), loss="supervised", negatives=6)
    data, table = workload.data, workload.model.embeddings().detach().double().numpy().copy()
    assert data.truth is not None
    (batch,) = batches(data, workload.draws, 256, workload.runtime, 1)
    users, items, *negatives = batch.nodes.numpy()
    losses, false = [], 0
    for number, (user, item) in enumerate(zip(users, items)):
        left = [row[number] for row in negatives if not data.truth[user, row[number] - data.n_users]]
        false += len(negatives) - len(left)
        scores = table[user] @ table[item] - table[left] @ table[user]
        losses.append(-np.log(expit(scores).mean()) if left else 0)
    assert false > 50
    found = workload.train_epoch(1)
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert found["fnr"] == 0

    def auc(**params: Any) -> float:
        """The AUC of liked items outside training against items that are not liked."""
        workload = Recommender(Params(dim=8, batch_size=1024, lr=0.02, **params), RUNTIME)
        for epoch in range(1, 9):
            workload.train_epoch(epoch)
        assert workload.data.truth is not None
        users, items = (side.detach() for side in workload.embeddings())
        seen = workload.data.train.mask(0, len(users), len(items)).numpy()
        rows = zip((users @ items.T).numpy(), workload.data.truth & ~seen, workload.data.truth)
        return float(np.mean([(row[new][:, None] > row[~liked]).mean() for row, new, liked in rows if new.any()]))

    assert auc(loss="supervised") > auc(loss="dpl") + 0.03


def test_the_softmax_of_a_batch_is_corrected_by_logq() -> None:
    workload = build(
        replace(RUNTIME, steps_per_epoch=1), loss="infonce", temperature=0.5, sampler="in_batch", logq=True
    )
    data, table = workload.data, workload.model.embeddings().detach().double().numpy().copy()
    (batch,) = batches(data, workload.draws, 256, workload.runtime, 1)
    users, items = batch.nodes.numpy()
    owned = {(user, item + data.n_users) for user, item in zip(data.train.users.tolist(), data.train.items.tolist())}
    share = data.popularity.numpy() / len(data.train.items)
    losses = []
    for user, item in zip(users, items):
        batch_items = np.array([item, *(other for other in items if (user, other) not in owned)])
        corrected = table[batch_items] @ table[user] / 0.5 - np.log(share[batch_items - data.n_users])
        losses.append(logsumexp(corrected) - corrected[0])
    assert workload.train_epoch(1)["loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_bprac_e_steps_are_spread_evenly_over_the_epochs() -> None:
    """Two E-steps in five epochs come before epochs 1 and 4. The state includes the current credences."""
    runtime = replace(RUNTIME, epochs=5, steps_per_epoch=2)
    workload = build(runtime, loss="bprac", e_steps=2, lr=0.05)
    held = []
    for epoch in range(1, 6):
        workload.train_epoch(epoch)
        assert workload.calibrate.held is not None
        held.append(workload.calibrate.held.clone())
        if epoch == 2:
            resumed = build(runtime, loss="bprac", e_steps=2, lr=0.05)
            resumed.load_state_dict(workload.state_dict())
    assert [torch.equal(one, other) for one, other in pairwise(held)] == [True, True, False, True]
    for epoch in range(3, 6):
        resumed.train_epoch(epoch)
    assert torch.equal(resumed.model.embedding, workload.model.embedding)
    every = build(replace(runtime, epochs=2), loss="bprac", e_steps=7)
    assert not torch.equal(*(every.calibrate(1).weights, (every.train_epoch(1), every.calibrate(2).weights)[1]))  # type: ignore[arg-type]
    assert "credence" not in build(loss="bprac").state_dict()


def masked_dcl(i: Array, j: Array, *, beta: float) -> Array:
    """HCL with τ+ = .1 for a positive and the negatives of one user; β = 0 is DCL."""
    weights = np.exp(beta * j) / np.exp(beta * j).mean()
    among = ((weights * np.exp(j)).sum() - len(j) * 0.1 * np.exp(i)) / 0.9
    return -np.log(np.exp(i) / (np.exp(i) + max(among, len(j) * np.exp(j).min())))


IN_BATCH: dict[str, tuple[dict[str, Any], Callable[[Any, Array], Any]]] = {
    "infonce": ({"temperature": 0.5}, lambda i, j: logsumexp(2 * np.r_[i, j]) - 2 * i),
    "decoupled": ({}, lambda i, j: logsumexp(j) - i),
    "dcl": ({"tau": 0.1}, lambda i, j: masked_dcl(i, j, beta=0)),
    "hcl": ({"tau": 0.1, "beta": 2.0}, lambda i, j: masked_dcl(i, j, beta=2)),
    "bcl": ({"tau": 0.1, "alpha": 0.9, "beta": 0.7}, lambda i, j: bcl(np.array([i]), j[None], j[None])[0]),
}


@pytest.mark.parametrize("backbone", ["mf", "lightgcn"])
@pytest.mark.parametrize("loss", sorted(IN_BATCH))
def test_in_batch_loss_and_false_negative_rate_match_reference(loss: str, backbone: Any) -> None:
    """E-6.N: a user's negatives are the batch's items, with repetitions, without the user's training items."""
    params, formula = IN_BATCH[loss]
    workload = build(replace(RUNTIME, steps_per_epoch=1), loss=loss, sampler="in_batch", backbone=backbone, **params)
    data, table = workload.data, workload.model.embeddings().detach().double().numpy().copy()
    (batch,) = batches(data, workload.draws, 256, workload.runtime, 1)
    users, items = batch.nodes.numpy()
    owned = {(user, item + data.n_users) for user, item in zip(data.train.users.tolist(), data.train.items.tolist())}
    losses, false = [], []
    for user, item in zip(users, items):
        others = [other for other in items if (user, other) not in owned]
        losses.append(formula(table[user] @ table[item], table[others] @ table[user]))
        false += [bool(data.truth[user, other - data.n_users]) for other in others]  # type: ignore[index]
    found = workload.train_epoch(1)
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert found["fnr"] == pytest.approx(np.mean(false))


def test_in_batch_loss_is_zero_if_the_user_has_all_items_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    data = prepare(Interactions(2, 3, np.array([(0, 0), (0, 1), (1, 2)], np.int32), np.array([(1, 1)])), 0, False, CPU)
    monkeypatch.setattr(module, "prepare_on_node", lambda *_: data)
    for loss in IN_BATCH:
        params = Params(loss=loss, sampler="in_batch", dim=4, batch_size=1)
        workload = Recommender(params, replace(RUNTIME, holdout=False))
        assert workload.train_epoch(1)["loss"] == 0
        assert torch.isfinite(workload.model.embedding).all()


@pytest.mark.parametrize("loss", sorted(IN_BATCH))
def test_a_batch_without_negatives_has_a_defined_quality(loss: str) -> None:
    """Batches of one interaction have no negatives, so none is false and INF is 0."""
    params = Params(loss=loss, sampler="in_batch", dim=4, batch_size=1, quality=True)
    found = Recommender(params, replace(RUNTIME, steps_per_epoch=9)).train_epoch(1)
    assert (found["tnr"], found["inf"], found["fnr"]) == (1, 0, 0)


@pytest.mark.parametrize("loss", [loss for loss in sorted(LOSSES) if "temperature" in LOSSES[loss].params])
def test_training_at_the_smallest_temperature_stays_finite(loss: str) -> None:
    workload = build(replace(RUNTIME, steps_per_epoch=40), loss=loss, temperature=1e-3, negatives=8, lr=0.05)
    for epoch in (1, 2):
        assert np.isfinite(list(workload.train_epoch(epoch).values())).all()
    assert torch.isfinite(workload.model.embedding).all()


def test_truncation_drops_more_with_each_step() -> None:
    workload = build(replace(RUNTIME, steps_per_epoch=1), loss="denoise_truncated", drop_rate=0.4, drop_steps=2)
    for step in range(3):
        table = workload.model.embeddings().detach().double().numpy().copy()
        (batch,) = batches(workload.data, workload.draws, 256, workload.runtime, step + 1)
        user, item, negative = (table[row] for row in batch.nodes.numpy())
        positive, other = softplus(-(user * item).sum(1)), softplus((user * negative).sum(1))
        dropped = 512 - int((1 - min(0.2 * step, 0.4)) * 512)
        kept = np.r_[np.sort(positive)[: 256 - dropped], other]
        assert workload.train_epoch(step + 1)["loss"] == pytest.approx(kept.mean(), rel=1e-5)


@pytest.mark.parametrize("runtime", [{"accumulate": 2}, {"world_size": 2}])
def test_truncated_loss_refuses_micro_batches_and_several_workers(runtime: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="loss=denoise_truncated ranks the losses of a whole batch"):
        build(replace(RUNTIME, **runtime), loss="denoise_truncated")


@pytest.mark.parametrize("prior_var", [0.6, "fitted"])
@pytest.mark.parametrize("form", ["mean1", "thesis", "bayes", "prior"])
def test_bprac_weighs_interactions_by_their_credence(form: Any, prior_var: Any) -> None:
    workload = build(replace(RUNTIME, steps_per_epoch=1), loss="bprac", credence=form, prior_var=prior_var)
    data, table = workload.data, workload.model.embedding.detach().double().clone()
    (batch,) = batches(data, workload.draws, 256, workload.runtime, 1)
    users, items = data.pairs
    scores = (table[users] * table[items]).sum(1)
    odds = prior_log_odds(data.popularity)[items - data.n_users]
    sides = table[: data.n_users], table[data.n_users :]
    distribution = GaussianFactors.fitted(*sides) if prior_var == "fitted" else GaussianFactors(8, 0.6)
    weights = credence(scores, odds, distribution, form)
    user, item, negative = (table[row] for row in batch.nodes)
    losses = torch.nn.functional.softplus((user * negative).sum(1) - (user * item).sum(1))
    found = workload.train_epoch(1)
    assert found["loss"] == pytest.approx((weights[batch.rows] * losses).mean().item(), rel=1e-4)
    assert 0 < found["ks"] < 1


@pytest.mark.parametrize("form", ["auc", "auc_literal"])
def test_alpha_follows_the_validation_auc(form: str) -> None:
    """E-6.21: of a refit, which has no validation part, it follows the AUC of the training interactions."""
    workload = build(loss="bcl", negatives=4, lr=0.02, alpha=form)
    for epoch in (1, 2, 3):
        expected = alpha_from_auc(workload.evaluate("validation").metrics["auc"], literal=form == "auc_literal")
        assert workload.train_epoch(epoch)["alpha"] == pytest.approx(expected)
    refit = build(replace(RUNTIME, holdout=False), loss="bcl", negatives=4, lr=0.02, alpha=form)
    refit.train_epoch(1)
    users, items = (side.detach() for side in refit.embeddings())
    seen = refit.data.train.mask(0, len(users), len(items))
    trained = [roc_auc(row, of_user).item() for row, of_user in zip(users @ items.T, seen) if of_user.any()]
    expected = alpha_from_auc(float(np.mean(trained)), literal=form == "auc_literal")
    assert refit.train_epoch(2)["alpha"] == pytest.approx(expected, rel=1e-5)


def test_bcl_places_ties_by_the_ties_parameter() -> None:
    """A single negative has place 1 by "<=", with a weight of .556, and place 1/2 by mid ranks (E-6.30)."""
    given: dict[str, Any] = {"alpha": 0.9, "beta": 0.5, "tau": 0.1}
    scores = Scores(torch.zeros(3), torch.zeros(3, 0), torch.zeros(3, 1), 0)
    for ties, place in ({"ties": "mid"}, 0.5), ({"ties": "le"}, 1.0), ({}, 1.0):
        weight = bcl_weights_at(torch.tensor(place), **given)
        found = LOSSES["bcl"].compute(scores, loss_settings(Params(loss="bcl", negatives=1, **ties, **given), 0.05))
        torch.testing.assert_close(found, torch.log1p(weight).expand(3))
    assert weight.item() == pytest.approx(0.556, abs=1e-3)


def test_default_tau_of_dpl_is_the_density_of_the_training_data() -> None:
    workload = build(loss="dpl")
    assert workload.settings["tau"] == pytest.approx(len(workload.data.train.items) / (600 * 400))
    assert build(loss="dpl", tau=0.3).settings["tau"] == 0.3


def test_share_of_clamped_anchors_is_reported() -> None:
    """With τ+ near one, P̂ is negative for many anchors."""
    found = build(loss="dpl", negatives=1, positives=1, tau=0.9).train_epoch(1)
    assert 0.1 < found["clamped"] < 1


@pytest.mark.parametrize("sampler", ["uniform", "dns", "bns_oracle"])
def test_tnr_and_inf_agree_with_the_planted_truth(sampler: Any) -> None:
    """TNR (4.27) and INF (4.28), by the planted truth of the generated data."""
    workload = build(
        replace(RUNTIME, steps_per_epoch=1), sampler=sampler, quality=True, truth="planted", lr=1e-6, weight_decay=0
    )
    truth = workload.data.truth
    assert truth is not None
    found = workload.train_epoch(1)
    (batch,) = batches(workload.data, workload.draws, 256, workload.runtime, 1)
    embedding = workload.model.embedding.detach()
    user, item, candidates = (embedding[nodes] for nodes in (batch.nodes[0], batch.nodes[1], batch.nodes[2:]))
    scores = (user * candidates).sum(2)
    liked = truth[batch.nodes[0], batch.nodes[2:] - workload.data.n_users]
    if sampler == "bns_oracle":
        assert found["tnr"] == pytest.approx(1 - liked.all(0).mean()), "a liked one only where all are"
        return
    best, place = scores.max(0)  # of the only one, or of DNS's candidates
    info = torch.sigmoid(best - (user * item).sum(1)).numpy()
    liked = np.take_along_axis(liked, place.numpy()[None], 0)[0]
    assert found["tnr"] == pytest.approx(1 - liked.mean())
    assert found["inf"] == pytest.approx(np.where(liked, -info, info).mean(), rel=1e-4)


@pytest.mark.parametrize("given", [{}, {"loss": "infonce", "negatives": 3}, {"sampler": "dns"}, {"optimizer": "sgd"}])
def test_false_negative_rate_is_one_minus_tnr_by_the_planted_truth(given: dict[str, Any]) -> None:
    """The rate is reported by default; with quality=True and truth="planted" it equals 1 - TNR."""
    if given.get("optimizer"):
        pytest.importorskip("numba")
    workload, unasked = build(quality=True, truth="planted", **given), build(**given)
    for epoch in (1, 2):
        found = workload.train_epoch(epoch)
        assert found["fnr"] == pytest.approx(1 - found["tnr"])
        assert 0.02 < found["fnr"] < 0.5
        assert unasked.train_epoch(epoch)["fnr"] == found["fnr"]
        assert found["fpr"] == 0


def test_false_positive_rate_is_weighted_by_the_credence() -> None:
    """A sixth of the training interactions is injected noise; the credence of BPRAC gives it less weight."""
    plain = build(dataset_noise=0.2, lr=0.02)
    weighing = build(dataset_noise=0.2, lr=0.02, loss="bprac", credence="thesis")
    data = load_interactions("synthetic", Path(), "official", 0.2)
    assert data.truth is not None
    users, items = plain.data.pairs[0].numpy(), plain.data.pairs[1].numpy() - data.n_users
    expected = (~data.truth[users, items]).mean()
    assert expected == pytest.approx(1 / 6, abs=0.01)
    for epoch in (1, 2, 3):
        assert plain.train_epoch(epoch)["fpr"] == pytest.approx(expected)
        assert weighing.train_epoch(epoch)["fpr"] < 0.9 * expected


@pytest.mark.data
def test_only_the_loss_is_reported_for_a_dataset_without_truth() -> None:
    root = Path(os.environ.get("ORCHESTRATOR_DATA", ""))
    if not (root / "ml-100k").is_dir():
        pytest.skip("ORCHESTRATOR_DATA holds no ml-100k")
    assert set(build(replace(RUNTIME, data=root, steps_per_epoch=1), dataset="ml-100k").train_epoch(1)) == {"loss"}
    noisy = build(replace(RUNTIME, data=root, steps_per_epoch=1), dataset="ml-100k", dataset_noise=0.25)
    assert noisy.train_epoch(1)["fpr"] == pytest.approx(0.2, abs=0.01)


def test_refit_reports_no_tnr_with_the_validation_part_as_truth() -> None:
    assert "tnr" not in build(replace(RUNTIME, holdout=False), quality=True).train_epoch(1)
    assert "tnr" in build(replace(RUNTIME, holdout=False), quality=True, truth="test").train_epoch(1)


def test_occupation_prior_without_occupations_is_refused() -> None:
    with pytest.raises(DataError, match="occupations"):
        build(sampler="bns", bns_prior="occupation")


@pytest.mark.slow
def test_training_with_srns_resumes_from_its_state() -> None:
    whole, halfway = (build(sampler="srns") for _ in range(2))
    for workload in (whole, halfway):
        workload.train_epoch(1)
    fresh = build(sampler="srns")
    fresh.load_state_dict(halfway.state_dict())
    assert fresh.train_epoch(2) == whole.train_epoch(2)
    assert "sampler" not in build().state_dict()


def limits(loss: str) -> list[dict[str, Any]]:
    """Settings with the parameters of a loss at the ends of their ranges."""
    reads, found = LOSSES[loss].params, [dict[str, Any]()]
    found += [{"tau": tau} for tau in (0.0, 0.999) if "tau" in reads]
    found += [{name: count} for name in ("negatives", "positives") for count in (1, 50) if name in reads]
    if "positives" in reads:
        found.append({"positives": 0})
    if "alpha" in reads:
        ends = ((0.5, 0.0, 0.0), (1.0, 1.0, 0.0), (1.0, 0.0, 0.999), (0.5, 1.0, 0.5))
        found += [{"alpha": alpha, "beta": beta, "tau": tau} for alpha, beta, tau in ends]
    found += [{name: value} for name in ("rho", "lam") for value in (0.0, 1.0) if name in reads]
    found += [{"temperature": value} for value in (1e-3, 1e4) if "temperature" in reads]
    if "credence" in reads:
        forms = ("mean1", "thesis", "bayes", "prior")
        found += [{"credence": form, "prior_var": value} for form in forms for value in (1e-6, 100.0)]
    return found


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_training_at_the_limits_of_the_parameters_stays_finite(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users have all seen items, none, or one; one item is never seen; draws exceed the number of items."""
    owned = {0: range(6), 2: [3], 3: [0, 1], 4: range(5)}
    train = np.array([(user, item) for user, items in owned.items() for item in items], np.int32)
    truth = np.eye(5, 7, dtype=np.bool_)
    truth[tuple(train.T)] = True
    known = truth if LOSSES[loss].true_negatives else None
    data = prepare(Interactions(5, 7, train, np.array([(2, 1)], np.int32), truth=known), 0, False, RUNTIME.device)
    monkeypatch.setattr(module, "prepare_on_node", lambda *_: data)
    samplers: tuple[dict[str, Any], ...] = (
        {}, {"sampler": "dns", "candidates": 100}, {"sampler": "bns", "candidates": 100, "bns_prior": "users"},
        {"sampler": "srns", "srns_memory": 20}, {"sampler": "srns", "srns_temperature": 1e-3},
        {"sampler": "popularity"}, {"sampler": "aobpr", "aobpr_lambda": 1e-3}, {"sampler": "in_batch"},
    )  # fmt: skip
    for number, given in enumerate(limits(loss)):
        # The default parameters are tested with every sampler, a limit with the plain one and one other in turn.
        # A sampler's draws do not depend on the loss, so one loss (BCL) is tested with all set sizes and samplers.
        every = not given or (loss == "bcl" and "negatives" in given)
        for sampler in samplers if every else (samplers[0], samplers[1 + number % (len(samplers) - 1)]):
            if sampler == {"sampler": "in_batch"} and (not LOSSES[loss].in_batch or "negatives" in given):
                continue
            params = Params(loss=loss, dim=4, batch_size=4, lr=0.1, **given, **sampler)
            workload = Recommender(params, replace(RUNTIME, holdout=False))
            epochs = (1, 2) if "srns" in sampler.values() else (1,)  # only SRNS treats the first epoch differently
            metrics = [workload.train_epoch(epoch) for epoch in epochs] + [workload.evaluate("test").metrics]
            assert all(np.isfinite(list(row.values())).all() for row in metrics), (given, sampler)
            assert torch.isfinite(workload.model.embedding).all()


@pytest.mark.parametrize("runtime", [{"accumulate": 2}, {"world_size": 2}, {"steps_per_epoch": 3}, {"log_every": 1}])
def test_sequential_sgd_refuses_runtime_settings_of_batched_training(runtime: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="optimizer=sgd takes one triple at a time, in compiled passes"):
        Recommender(Params(optimizer="sgd"), replace(RUNTIME, **runtime))


def test_sequential_sgd_learns() -> None:
    pytest.importorskip("numba")
    workload = Recommender(Params(optimizer="sgd", lr=0.05, weight_decay=0.01), replace(RUNTIME, holdout=False))
    before = workload.evaluate("test").metrics["ndcg_at_20"]
    for epoch in range(1, 21):
        workload.train_epoch(epoch)
    assert workload.evaluate("test").metrics["ndcg_at_20"] > 3 * before
    assert workload.pack_shape() is None
    assert set(workload.state_dict()) == {"embedding"}


@pytest.mark.parametrize("weighted", [False, True])
def test_step_of_batched_sgd_matches_the_formula(weighted: bool) -> None:
    """(3.31), (3.32): the sum over the batch of c (gradient + reg Θ), for each row once per triple that contains it."""
    loss = {"loss": "bprac"} if weighted else {}
    given: dict[str, Any] = {"optimizer": "sgd_batched", "lr": 0.05, "weight_decay": 0.02, **loss}
    workload = build(replace(RUNTIME, steps_per_epoch=1), **given)
    start = workload.model.embedding.detach().clone().double()
    (batch,) = batches(workload.data, workload.draws, 256, workload.runtime, 1)
    weights = workload.calibrate(1).of(batch.rows)
    c = torch.ones(256, dtype=torch.float64) if weights is None else weights.double()
    user, item, negative = (start[row] for row in batch.nodes)
    down = (c * torch.sigmoid((user * (negative - item)).sum(1))).unsqueeze(1)
    expected = start.clone()
    rows = ((user, item - negative), (item, user), (negative, -user))
    for nodes, (own, step) in zip(batch.nodes, rows):
        expected.index_add_(0, nodes, 0.05 * (down * step - 0.02 * c.unsqueeze(1) * own))
    workload.train_epoch(1)
    torch.testing.assert_close(workload.model.embedding.detach().double(), expected, rtol=1e-4, atol=1e-6)
    assert set(workload.state_dict()) == {"embedding"}
    assert workload.pack_shape() is None


@pytest.mark.faults  # a minute each
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"sampler": "dns"},
        pytest.param({"loss": "mpr", "sampler": "dns"}, marks=pytest.mark.long),
        pytest.param({"loss": "gbpr"}, marks=pytest.mark.long),
    ],
)
def test_batched_and_compiled_sgd_learn_alike(given: dict[str, Any]) -> None:
    """Two implementations of one algorithm have the same learning curve within the spread of seeds."""
    pytest.importorskip("numba")

    def curve(seed: int, **optimizer: Any) -> list[tuple[float, float]]:
        params = Params(dim=8, lr=0.1, weight_decay=0.01, **given, **optimizer)
        workload = Recommender(params, replace(RUNTIME, seed=seed, holdout=False))
        found = []
        for last in (4, 8, 12):
            losses = [workload.train_epoch(epoch)["loss"] for epoch in range(last - 3, last + 1)]
            found.append((losses[-1], workload.evaluate("test").metrics["ndcg_at_20"]))
        return found

    batched, compiled = (
        np.array([curve(seed, **optimizer) for seed in range(4)])
        for optimizer in ({"optimizer": "sgd_batched", "batch_size": 256}, {"optimizer": "sgd"})
    )
    spread = np.sqrt((batched.var(0, ddof=1) + compiled.var(0, ddof=1)) / 2)
    assert (np.abs(batched.mean(0) - compiled.mean(0)) < 2 * spread + 1e-3).all()
    assert (compiled[:, -1, 1] > 0.15).all()  # .03 before training
