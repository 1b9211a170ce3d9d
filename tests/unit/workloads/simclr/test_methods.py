"""The methods MoCo, BYOL and ProtoNCE of the SimCLR workload against references, and their state over steps."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from workloads.contract import Runtime
from workloads.losses import contrastive
from workloads.losses.prototypes import concentrations
from workloads.simclr.batches import batches
from workloads.simclr.losses import LOSSES
from workloads.simclr.methods import Bootstrap, Prototypes, Queue
from workloads.simclr.params import Params
from workloads.simclr.workload import SimCLR

RUNTIME = Runtime(device=torch.device("cpu"), data=Path(), seed=3, epochs=2, steps_per_epoch=1)
TINY: dict[str, Any] = {
    "dataset_size": 8, "encoder": "tiny", "projection": 16, "batch_size": 32, "eval_probe": "never",
}  # fmt: skip
MOCO: dict[str, Any] = {"method": "moco", "queue": 80, "target_momentum": 0.9}


def _built(runtime: Runtime = RUNTIME, **params: Any) -> SimCLR:
    return SimCLR(Params(**{**TINY, **params}), runtime)


def _first_views(built: SimCLR) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Both views of the images of the first step, and the positions of these images."""
    (batch, *_) = batches(built.data.train, built.recipe, 32, built.runtime, 1)
    first, second = batch.views(built.recipe, torch.channels_last).chunk(2)
    return first, second, batch.places


def _weights(built: SimCLR) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in built.model.named_parameters()}


@pytest.mark.parametrize("loss", ["infonce", "decoupled", "dcl", "hcl", "bcl"])
def test_moco_loss_matches_reference_with_queue_negatives(loss: str) -> None:
    """The positive of a query is the momentum encoder's key, the negatives are the queue. Thesis 2.2.4.1."""
    given = {"alpha": 0.9} if loss == "bcl" else {}
    built = _built(**MOCO, loss=loss, temperature=0.2, **given)
    assert isinstance(built.method, Queue)
    twin = copy.deepcopy(built.model).train()
    keys_by = copy.deepcopy(built.method.target.network).train()
    queue = built.method.queue.clone()
    first, second, _ = _first_views(built)
    with torch.no_grad():
        queries, keys = twin(first), keys_by(second)
    positive = torch.stack([query @ key for query, key in zip(queries, keys)])
    negatives = torch.stack([torch.stack([query @ old for old in queue]) for query in queries])
    if loss == "infonce":
        logits = torch.cat([positive.unsqueeze(1), negatives], 1) / 0.2
        expected = functional.cross_entropy(logits, torch.zeros(32, dtype=torch.long))
    else:
        expected = LOSSES[loss].load()(positive, negatives, **built.settings).mean()
    row = built.train_epoch(1)
    assert row["loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert row["negatives"] == 80


def test_new_keys_replace_the_oldest_and_momentum_encoder_is_updated() -> None:
    built = _built(**MOCO)
    assert isinstance(built.method, Queue)
    before = built.method.queue.clone()
    began = _weights(built)
    _, second, _ = _first_views(built)
    with torch.no_grad():
        keys = copy.deepcopy(built.method.target.network).train()(second)
    built.train_epoch(1)
    torch.testing.assert_close(built.method.queue, torch.cat([keys, before[32:]]))
    followed = dict(built.method.target.network.named_parameters())
    for name, value in _weights(built).items():
        torch.testing.assert_close(followed[name].detach(), 0.9 * began[name] + 0.1 * value, msg=name)
    assert not any(value.requires_grad for value in followed.values())
    oldest = built.method.queue[64:].clone()
    newest = built.method.queue[:32].clone()
    built.train_epoch(2)
    assert torch.equal(built.method.queue[:32], newest)
    built.train_epoch(3)  # 96 keys have been written to 80 places
    assert built.method.pointer == 16
    assert not torch.isclose(built.method.queue[64:], oldest).any(1).all()
    assert torch.equal(built.method.queue[16:32], newest[16:])
    torch.testing.assert_close(built.method.queue.norm(dim=1), torch.ones(80))


def test_supervised_loss_uses_true_negatives_only() -> None:
    """In the batch, and in the queue, whose random initial keys have no class."""
    pairs = functional.normalize(torch.randn(4, 2, 16, generator=torch.Generator().manual_seed(1)), dim=2)
    labels = torch.tensor([0, 1, 0, -1])
    found = _built(loss="supervised").method.loss(pairs, {"temperature": 0.5}, labels)
    views = torch.cat([pairs[:, 0], pairs[:, 1]])
    classes = labels.repeat(2).tolist()
    losses = []
    for anchor in range(8):
        own = (anchor + 4) % 8
        kept = [
            other
            for other in range(8)
            if other % 4 != anchor % 4 and (classes[other] != classes[anchor] or classes[anchor] < 0)
        ]
        terms = [math.exp((views[anchor] @ views[other]).item() / 0.5) for other in [own, *kept]]
        losses.append(-math.log(terms[0] / math.fsum(terms)))
    assert found.item() == pytest.approx(math.fsum(losses) / 8, rel=1e-5)

    built = _built(**MOCO, loss="supervised")
    assert isinstance(built.method, Queue)
    *_, places = _first_views(built)
    built.train_epoch(1)
    assert torch.equal(built.method.classes[:32], built.data.train.labels[places])
    assert built.method.classes[32:].eq(-1).all()
    query = built.method.queue[:4]
    labels = built.method.classes[:4]
    same = labels.unsqueeze(1) == built.method.classes
    negatives = (query @ built.method.queue.T).masked_fill(same, -torch.inf)
    expected = contrastive.infonce_loss((query * query).sum(1), negatives, 0.5).mean()
    loss = built.method.query_loss(query, query, [], {"temperature": 0.5}, labels)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_only_the_supervised_loss_reads_labels() -> None:
    def trained(flipped: bool = False, **params: Any) -> float:
        built = _built(**params)
        train = built.data.train
        if flipped:
            built.method.train = replace(train, labels=train.labels.flip(0))
        return [built.train_epoch(epoch)["loss"] for epoch in (1, 2)][1]

    for method in ({}, MOCO):
        for loss in ("infonce", "supervised"):
            same = trained(**method, loss=loss) == trained(**method, loss=loss, flipped=True)
            assert same == (loss == "infonce")


def test_byol_loss_and_target_momentum_match_reference() -> None:
    """The loss is the mean of both directions; momentum rises by half a cosine. Thesis 2.2.4.2; BYOL, 3.1."""
    built = _built(method="byol", predictor=8, target_momentum=0.8)
    assert isinstance(built.method, Bootstrap)
    online = copy.deepcopy(built.model).train()
    target = copy.deepcopy(built.method.target.network).train()
    assert isinstance(target.predictor, nn.Identity)
    began = _weights(built)
    first, second, _ = _first_views(built)
    with torch.no_grad():
        predicted, aimed = online(torch.cat([first, second])), target(torch.cat([first, second]))
        directions = [(predicted[:32], aimed[32:]), (predicted[32:], aimed[:32])]
        terms = [2 - 2 * functional.cosine_similarity(q, z).mean().item() for q, z in directions]
    row = built.train_epoch(1)
    assert row["loss"] == pytest.approx(sum(terms) / 2, rel=1e-5)
    assert row.keys() == {"loss", "learning_rate"}
    momentum = 1 - 0.2 * (math.cos(math.pi / 2) + 1) / 2  # after one of two steps
    followed = dict(built.method.target.network.named_parameters())
    for name, value in _weights(built).items():
        if not name.startswith("predictor"):
            torch.testing.assert_close(followed[name].detach(), momentum * began[name] + (1 - momentum) * value)
    settled = {name: value.clone() for name, value in followed.items()}
    built.train_epoch(2)  # at the last step the momentum is 1, so the target does not change
    for name, value in followed.items():
        assert torch.equal(value, settled[name])


PROTONCE: dict[str, Any] = {
    "method": "protonce", "queue": 64, "clusters": 4, "granularities": 2, "prototype_warmup": 0.5, "temperature": 0.2,
}  # fmt: skip


@pytest.mark.parametrize("concentration", ["estimated", "constant"])
def test_prototype_loss_after_the_warm_up_matches_reference(concentration: str) -> None:
    built = _built(**PROTONCE, concentration=concentration, instance_weight=0.5)
    assert isinstance(built.method, Prototypes)
    assert built.train_epoch(1)["prototypes"] == 0
    other = _built(**{**PROTONCE, "prototype_warmup": 0.0}, concentration=concentration, instance_weight=0.0)
    assert isinstance(other.method, Prototypes)
    points = other._embeddings(other.method.target.network)
    first, _, places = _first_views(other)
    with torch.no_grad():
        queries = copy.deepcopy(other.model).train()(first)
    row = other.train_epoch(1)
    assert row["prototypes"] == 4 + 8
    terms = []
    for number, clustering in enumerate(other.method.clusterings):
        assert len(clustering.prototypes) == 4 * 2**number
        means = torch.stack([
            points[clustering.members == cluster].mean(0) for cluster in range(len(clustering.prototypes))
        ])  # fmt: skip
        torch.testing.assert_close(clustering.prototypes, functional.normalize(means, dim=1), atol=1e-5, rtol=1e-4)
        phi = torch.full((len(means),), 0.2)
        if concentration == "estimated":
            phi = concentrations(points, means, clustering.members, 0.2)
            assert phi.unique().numel() > 1
        torch.testing.assert_close(clustering.concentrations, phi, atol=1e-5, rtol=1e-4)
        logits = queries @ functional.normalize(means, dim=1).T / phi
        terms.append(functional.cross_entropy(logits, clustering.members[places]).item())
    assert row["loss"] == pytest.approx(sum(terms) / 2, rel=1e-4)


def test_instance_loss_is_added_with_its_weight() -> None:
    losses = {}
    for weight in (0.0, 0.5, 1.0):
        built = _built(**{**PROTONCE, "prototype_warmup": 0.0}, instance_weight=weight)
        losses[weight] = built.train_epoch(1)["loss"]
    assert losses[1.0] - losses[0.5] == pytest.approx(losses[0.5] - losses[0.0], rel=1e-4)
    assert losses[0.5] > losses[0.0]


@pytest.mark.parametrize("params", [MOCO, {"method": "byol", "predictor": 8}, {**PROTONCE, "prototype_warmup": 0.0}])
def test_micro_batches_equal_the_batch_without_batch_normalisation(
    params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With each image normalised by itself, the gradient and the queue of micro-batches equal those of the batch."""
    monkeypatch.setattr(nn, "BatchNorm2d", lambda channels: nn.GroupNorm(1, channels))
    monkeypatch.setattr(nn, "BatchNorm1d", nn.LayerNorm)
    rows, states = [], []
    for accumulate in (1, 2):
        built = _built(replace(RUNTIME, accumulate=accumulate), **params, optimizer="sgd", lr=0.1)
        rows.append(built.train_epoch(1)["loss"])
        states.append(built.state_dict())
    assert rows[0] == pytest.approx(rows[1], rel=1e-5)
    for name, value in states[0]["model"].items():
        torch.testing.assert_close(states[1]["model"][name], value, rtol=1e-4, atol=1e-6, msg=name)
    if "queue" in states[0]["method"]:
        torch.testing.assert_close(states[0]["method"]["queue"], states[1]["method"]["queue"])


@pytest.mark.parametrize(("params", "accumulate"), [({}, 1), ({}, 2), (MOCO, 2), ({"method": "byol"}, 1)])
def test_encoder_dropout_is_determined_by_the_seed_also_after_a_resume(params: dict[str, Any], accumulate: int) -> None:
    """Some models of timm have dropout. Both passes of a gradient cache use it."""
    runtime = replace(RUNTIME, accumulate=accumulate)
    runs = []
    for resumed in (False, True):
        built = _dropping(runtime, params)
        metrics = [built.train_epoch(1)]
        if resumed:
            state = copy.deepcopy(built.state_dict())
            built = _dropping(runtime, params)
            built.load_state_dict(state)
        torch.rand(5)  # other draws from the process's generator
        runs.append([*metrics, built.train_epoch(2)])
    assert runs[0] == runs[1]


def _dropping(runtime: Runtime, params: dict[str, Any]) -> SimCLR:
    built = _built(runtime, **params)
    networks = [built.model, *([built.method.target.network] if isinstance(built.method, Queue | Bootstrap) else [])]
    for network in networks:
        assert isinstance(network.encoder.layers, nn.Sequential)
        network.encoder.layers.append(nn.Dropout(0.5))
    return built


def test_both_passes_of_a_gradient_cache_use_equal_dropout_masks() -> None:
    built = _dropping(replace(RUNTIME, accumulate=2), {})
    seen: list[torch.Tensor] = []
    *_, dropout = built.model.encoder.layers.children()
    dropout.register_forward_hook(lambda _layer, _given, kept: seen.append(kept == 0))
    built.train_epoch(1)
    assert len(seen) == 4
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[1], seen[3])
    assert not torch.equal(seen[0], seen[1])
