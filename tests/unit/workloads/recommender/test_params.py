"""Hyperparameters of the recommender: names, bounds, contradictions and round trips."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from workloads.recommender.backbones import BACKBONES, LEARNT
from workloads.recommender.losses import LOSSES, SAMPLERS
from workloads.recommender.params import Params


def test_every_loss_and_sampler_has_its_parameters_and_no_other() -> None:
    optional = {name for name, field in Params.model_fields.items() if field.default is None} - set(LEARNT)
    for loss, own in LOSSES.items():
        for sampler, further in SAMPLERS.items():
            if sampler == "in_batch" and not own.in_batch:
                continue
            params = Params(loss=loss, sampler=sampler).model_dump()
            expected = {**own.params, **further.params}
            expected = {name: value({}) if callable(value) else value for name, value in expected.items()}
            if sampler == "in_batch":
                del expected["negatives"]
            assert {name: params[name] for name in optional if params[name] is not None} == expected


def test_every_backbone_has_its_parameters_and_no_other() -> None:
    conditional = {name for name, field in Params.model_fields.items() if field.default is None}
    for name, row in BACKBONES.items():
        given = Params(backbone=name).model_dump()
        assert {key: given[key] for key in conditional if given[key] is not None} == row.params


def test_every_parameter_is_described() -> None:
    assert all(field.description for field in Params.model_fields.values())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"layers": 2}, "layers=2 has no effect with backbone=mf"),
        ({"lr_decay_every": 5}, "lr_decay_every=5 has no effect with lr_decay=1"),
        ({"lr": 0}, "greater than 0"),
        ({"lr": float("nan")}, "finite number"),
        ({"dim": 0}, "greater than or equal to 1"),
        ({"loss": "brp"}, "'bpr'"),
        ({"learning_rate": 0.1}, "not permitted"),
        ({"negatives": 4}, "negatives=4 has no effect with loss=bpr. Drop negatives, or set loss=infonce or loss=dec"),
        ({"candidates": 4}, "candidates=4 has no effect with sampler=uniform. Drop candidates, or set sampler=dns or"),
        ({"sampler": "bns", "ecdf_items": 64}, "ecdf_items=64 has no effect with ecdf=exact.* or set ecdf=sampled"),
        ({"truth": "test"}, "truth=test has no effect with loss=bpr, sampler=uniform, quality=false.* or quality=true"),
        ({"threads": 2}, "threads=2 has no effect with optimizer=adam. Drop threads, or set optimizer=sgd"),
        ({"optimizer": "sgd", "batch_size": 1}, "batch_size=1 has no effect with optimizer=sgd"),
        ({"optimizer": "sgd", "loss": "dpl"}, "optimizer=sgd does not support loss=dpl. Set optimizer=adam"),
        ({"optimizer": "sgd", "backbone": "lightgcn"}, "does not support backbone=lightgcn"),
        ({"optimizer": "sgd", "sampler": "bns", "ecdf": "batch"}, "does not support ecdf=batch"),
        ({"sampler": "dns", "bns_lambda": 2}, "bns_lambda=2.0 has no effect with sampler=dns"),
        ({"loss": "dpl", "tau": 1.0}, r"tau=1 .* is not in \[0, 1\)"),
        ({"loss": "dpl", "tau": -0.1}, "tau=-0.1"),
        ({"loss": "dpl", "tau": "dense"}, "density"),
        ({"loss": "bcl", "alpha": 0.4}, r"alpha=0.4 .* is not in \[0.5, 1\]"),
        ({"loss": "bcl", "alpha": "AUC"}, "'auc' or 'auc_literal'"),
        ({"ties": "mid"}, "ties=mid has no effect with loss=bpr. Drop ties, or set loss=bcl"),
        ({"loss": "bcl", "beta": 1.5}, r"beta=1.5 .* is not in \[0, 1\]"),
        ({"sampler": "bns", "bns_lambda": -1}, "bns_lambda=-1"),
        ({"loss": "bprac", "prior_var": 0}, r"prior_var=0 .* is not in \[1e-06, 100\]"),
        ({"loss": "bprac", "prior_var": 1e-300}, r"prior_var=1e-300 .* is not in \[1e-06, 100\]"),
        ({"loss": "infonce", "temperature": 1e-45}, "greater than or equal to 0.001"),
        ({"sampler": "srns", "srns_temperature": 1e-45}, "greater than or equal to 0.001"),
        ({"loss": "denoise_truncated_bpr", "threshold": 0}, "greater than 0"),
        ({"sampler": "in_batch"}, "sampler=in_batch does not go with loss=bpr, .* Set loss=infonce or dec"),
        ({"sampler": "in_batch", "loss": "dpl"}, "sampler=in_batch does not go with loss=dpl"),
        ({"sampler": "dns", "logq": True}, "logq=True has no effect with sampler=dns. .* set sampler=in_batch"),
        ({"sampler": "in_batch", "loss": "bcl", "logq": True}, "softmax of loss=infonce or decoupled, not loss=bcl"),
        (
            {"loss": "supervised", "dataset": "lastfm"},
            "known for dataset=synthetic truth=planted alone; got dataset=las",
        ),
        ({"loss": "supervised", "truth": "test"}, "got dataset=synthetic truth=test"),
        ({"loss": "bpr", "e_steps": 10}, "e_steps=10 has no effect with loss=bpr"),
        ({"loss": "bprac", "e_steps": 0}, "greater than or equal to 1"),
        ({"sampler": "in_batch", "loss": "bcl", "negatives": 4}, "negatives=4 has no effect with sampler=in_batch"),
        ({"sampler": "in_batch", "loss": "bcl", "batch_size": 2**16}, "Set a batch_size of at most 32768"),
        ({"sampler": "in_batch", "loss": "bcl", "optimizer": "sgd"}, "optimizer=sgd does not support"),
        ({"sampler": "bns", "bns_prior": "label"}, "bns_prior=label is for sampler=bns_oracle"),
        ({"sampler": "bns_oracle", "truth": "validation"}, "truth=validation, since a refit trains on it"),
        ({"sampler": "bns_oracle", "dataset": "lastfm"}, "dataset=synthetic alone.* Set truth=test"),
        ({"quality": True, "truth": "planted", "dataset": "/a.csv"}, "dataset=/a.csv. Set truth=validation or"),
    ],
)
def test_invalid_parameters_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Params(**given)


def test_dumped_parameters_recreate_equal_parameters() -> None:
    for params in (
        Params(),
        Params(backbone="lightgcn", layers=3, lr_decay=0.1, lr_decay_every=7),
        Params(loss="bcl", sampler="bns", ecdf="sampled", quality=True, bns_lambda="warm"),
        Params(backbone="ials", dim=16),
        Params(loss="hcl", beta=3, tau=0.3, sampler="bns_oracle"),
    ):
        assert Params(**params.model_dump()) == params
