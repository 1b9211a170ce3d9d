"""The class of the conformance suite. :mod:`workloads.testing` imports it with pytest's assertions."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import math
import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, get_args
from uuid import uuid4

import numpy as np
import pandas as pd
import pytest
import torch

from workloads.contract import (
    LIMITS,
    RESERVED,
    Direction,
    Evaluation,
    Initialisable,
    Objective,
    Packable,
    Runtime,
    State,
    Workload,
)
from workloads.predictor_sources import copy_sources, predictor_sources
from workloads.served_weights import served_weights
from workloads.testing_distributed import run_on_ranks
from workloads.testing_runs import (
    Reference,
    TwoEpochs,
    build_workload,
    seed_global_streams,
    train_on_rank,
    train_twice,
    values,
)
from workloads.testing_states import assert_equal_states, through_plain_data, vectors_by_kind, with_nan

__all__ = ["Conformance", "values"]


class Conformance:
    """Base class of conformance tests.

    Set ``workload`` (the class) and ``params`` (its parameters, as a dict), and define ``spoiled_test``. Set ``data``
    (a folder) if the parameters name a dataset on disk. All other attributes are optional: they say how much
    ``tolerance`` or ``choices`` runs may differ, which metrics are ``ranked``, and so on.
    """

    workload: ClassVar[type[Any]]
    params: ClassVar[Mapping[str, Any]]
    data: ClassVar[Path] = Path()
    epochs: ClassVar[int] = 2
    tolerance: ClassVar[float] = 2e-5
    """Allowed relative difference of losses, gradients and weights between runs that sum in another order
    (micro-batches, two processes). A sum of n float32 values is exact to about 6e-8 sqrt(n), relative to its largest
    terms."""
    choices: ClassVar[float] = 0.0
    """The same in training for a workload that samples by its model's scores: a choice between nearly equal scores can
    depend on the last bit and change a few rows of an epoch's gradient."""
    ranked: ClassVar[tuple[str, ...]] = ()
    """Patterns of metrics of ranks, ties and thresholds. They jump where the last bit of a score differs, so no
    tolerance fits; such runs are compared by losses, states and units instead."""
    compared: ClassVar[Mapping[str, Any]] = {}
    """Parameters that override ``params`` in such runs, such as a small learning rate where rounding errors would grow.
    Adam's first steps have the sign of the gradient, even of one that is only rounding error."""
    pack: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {}, {})
    """For a workload that can be packed: overrides of ``params`` for three members, as different as a pack allows."""
    earlier: ClassVar[tuple[Path, ...]] = ()
    """Predictors of earlier versions, a file each, that registered models carry: they must predict as the present one
    does."""
    weights: ClassVar[str] = "model"
    """For a workload that can start from a model: the key of its state that holds the weights."""
    start_seed: ClassVar[int] = 8
    """Seed of the workload that starts from the weights of another one, whose seed is 7."""
    _reference: ClassVar[Reference]
    _compared_reference: ClassVar[tuple[Workload, TwoEpochs]]

    @pytest.fixture(autouse=True)
    def _one_thread(self) -> Iterator[None]:
        # Bitwise claims hold for one thread: with several, sums are split differently from run to run.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(threads)

    def skip_if_limited(self, name: str) -> None:
        """Skip a test of what the workload declares it cannot do (:class:`~workloads.contract.Limited`)."""
        if reason := getattr(self.workload, "limits", {}).get(name):
            pytest.skip(f"{name}: {reason}")

    def build(self, **runtime: Any) -> Workload:
        return build_workload(self.workload, self.params, self.data, {"epochs": self.epochs, **runtime})

    def build_to_compare(self, **runtime: Any) -> Workload:
        params = {**self.params, **self.compared}
        return build_workload(self.workload, params, self.data, {"epochs": self.epochs, **runtime})

    def reference(self) -> Reference:
        """Train and evaluate at the first call; the result is shared by all tests of this class."""
        cls = type(self)
        if "_reference" not in cls.__dict__:
            seed_global_streams(1)
            workload = self.build()
            rows: list[dict[str, float]] = []
            states: list[State] = []
            for epoch in (1, 2):
                rows.append(values(workload.train_epoch(epoch)))
                states.append(copy.deepcopy(workload.state_dict()))
            validation = tuple(values(workload.evaluate("validation")) for _ in range(2))
            test = workload.evaluate("test")
            cls._reference = Reference(tuple(rows), tuple(states), validation, test, workload)
        return cls._reference

    def compared_reference(self) -> tuple[Workload, TwoEpochs]:
        """Train on whole batches in one process at the first call; the result is shared by all tests of this class."""
        cls = type(self)
        if "_compared_reference" not in cls.__dict__:
            if self.compared:
                workload = self.build_to_compare()
                trained = train_twice(workload)
            else:
                reference = self.reference()
                workload = reference.trained
                trained = TwoEpochs.of(reference.rows, reference.states[-1])
            cls._compared_reference = (workload, trained)
        return cls._compared_reference

    def test_is_a_workload(self) -> None:
        assert isinstance(self.build(), Workload)

    def test_no_parameter_has_the_name_of_a_setting(self) -> None:
        assert not set(self.workload.Params.model_fields) & set(RESERVED), "the engine sets these: rename yours"

    def test_another_seed_other_metrics(self) -> None:
        plain = self.reference()
        other = self.build(seed=8)
        differ = any(values(other.train_epoch(epoch)) != row for epoch, row in enumerate(plain.rows, 1))
        assert differ or values(other.evaluate("validation")) != plain.validation[0]

    def test_two_epochs_are_one_saved_restored_and_another(self) -> None:
        whole = self.reference()
        fresh = self.build()
        fresh.load_state_dict(through_plain_data(whole.states[0]))
        assert values(fresh.train_epoch(2)) == whole.rows[1], (
            "a resume trains otherwise: the state lacks something, or random draws depend on earlier ones"
        )
        assert values(fresh.evaluate("validation")) == whole.validation[0]
        assert_equal_states(fresh.state_dict(), whole.states[1])

    def test_training_reduces_to_finite_constant_keys(self) -> None:
        reference = self.reference()
        rows = reference.rows
        seen = reference.validation
        for row in (*rows, *seen):
            assert all(math.isfinite(value) for value in row.values()), row
        assert rows[0].keys() == rows[1].keys()
        assert seen[0].keys() == seen[1].keys() == values(reference.test).keys()

    def test_objectives_are_measured(self) -> None:
        reference = self.reference()
        seen, objectives = reference.validation[0], reference.trained.objective
        for objective in objectives if isinstance(objectives, tuple) else (objectives,):
            assert isinstance(objective, Objective)
            assert objective.metric in seen
        assert set(getattr(self.workload, "limits", {})) <= set(LIMITS)
        assert set(getattr(self.workload, "directions", {}).values()) <= set(get_args(Direction))

    def test_same_seed_same_metrics_with_evaluations_in_between(self) -> None:
        """The state of the global random generators has no influence either, and evaluation leaves them alone."""
        reference = self.reference()
        seed_global_streams(2)
        looked = self.build()
        assert values(looked.train_epoch(1)) == reference.rows[0], "the same seed gave other metrics"
        before = through_plain_data(looked.state_dict())
        torch_stream = torch.get_rng_state()
        numpy_stream = np.random.get_state()
        python_stream = random.getstate()
        first = values(looked.evaluate("validation"))
        looked.evaluate("test")
        assert values(looked.evaluate("validation")) == first, "evaluate has changed the state or a random stream"
        assert_equal_states(looked.state_dict(), before)
        assert torch.equal(torch.get_rng_state(), torch_stream)
        assert str(np.random.get_state()) == str(numpy_stream)
        assert random.getstate() == python_stream
        assert values(looked.train_epoch(2)) == reference.rows[1]
        assert values(looked.evaluate("validation")) == reference.validation[0]

    def test_units_are_rows_with_an_id(self) -> None:
        self.skip_if_limited("units")
        units = self.reference().test.units
        assert next(iter(units)) == "id"
        assert len({len(column) for column in units.values()}) == 1
        assert len(set(units["id"].tolist())) == len(units["id"])

    def test_training_never_reads_the_test_split(self) -> None:
        """Training twice, once with :meth:`spoiled_test` in force, must give the same weights."""
        plain = self.reference()
        with self.spoiled_test():
            spoiled = self.build()
            for epoch in (1, 2):
                spoiled.train_epoch(epoch)
            validation = values(spoiled.evaluate("validation"))
            test = values(spoiled.evaluate("test"))  # which may be read only now
        assert validation == plain.validation[0], "with another test split, training gives another model"
        assert_equal_states(spoiled.state_dict(), plain.states[1])
        assert test != values(plain.test), "spoiled_test() spoiled nothing"

    def test_a_refit_trains_on_the_validation_part_too(self) -> None:
        self.skip_if_limited("refit")
        params = self.workload.Params(**self.params)
        try:
            getattr(params, "check_plan", lambda epochs, refit: None)(self.epochs, True)
        except ValueError as refused:
            pytest.skip(str(refused))
        refit = self.build(holdout=False)
        refit.train_epoch(1)
        try:
            assert_equal_states(refit.state_dict(), self.reference().states[0])
        except AssertionError:
            return
        pytest.fail("holdout=False gives the same model: a refit trains on train + validation")

    def spoiled_test(self) -> Any:
        """A context manager in which a newly built workload reads another test split. Override it."""
        raise NotImplementedError(f"{type(self).__name__} needs spoiled_test(): see the example in workloads.testing")

    def test_state_is_tensors_and_json(self) -> None:
        through_plain_data(self.reference().states[0])

    def test_loaded_state_keeps_the_parameters_learning_rate(self) -> None:
        self.skip_if_limited("lr")
        lr = getattr(self.workload.Params(**self.params), "lr", None)
        if lr is None:
            pytest.skip("no learning rate of that name")
        donor = self.reference()
        other = self.workload.Params(**{**self.params, "lr": lr * 2})
        taken = self.workload(other, Runtime(device=torch.device("cpu"), data=self.data, seed=7, epochs=self.epochs))
        taken.load_state_dict(through_plain_data(donor.states[0]))
        taken.train_epoch(2)
        assert values(taken.evaluate("validation")) != donor.validation[0], (
            "the state's learning rate was used: set it from the parameters after the optimiser's state is loaded"
        )

    def test_micro_batches_give_the_same_gradient(self) -> None:
        self.skip_if_limited("accumulate")
        _, whole = self.compared_reference()
        self._assert_trained_alike(whole, train_twice(self.build_to_compare(accumulate=2)))

    def test_virtual_epochs_cover_the_same_stream(self) -> None:
        self.skip_if_limited("steps_per_epoch")
        workload = self.build(steps_per_epoch=1)
        first, second = (values(workload.train_epoch(epoch)) for epoch in (1, 2))
        assert first.keys() == second.keys()
        assert first != second

    def test_servable_is_plain(self) -> None:
        servable = self.reference().trained.servable()
        assert all(isinstance(tensor, torch.Tensor) for tensor in servable.weights.values())
        json.dumps([dict(servable.config), dict(servable.params)])
        for file in predictor_sources(servable.predictor).values() if servable.predictor else ():
            source = file.read_text()
            for ours in ("orchestrator", "workloads"):
                assert f"import {ours}" not in source
                assert f"from {ours}" not in source

    def test_it_starts_from_the_weights_of_a_model(self) -> None:
        """Those of the trained model, whatever its own seed gave; it then trains. Weights that do not fit are named."""
        reference = self.reference()
        servable = reference.trained.servable()
        fresh = self.build(seed=self.start_seed)
        if not isinstance(fresh, Initialisable):
            pytest.skip("starts from scratch")
        given = {n: tensor.detach().cpu().clone() for n, tensor in {**servable.weights, **servable.training}.items()}
        config = json.loads(json.dumps(dict(servable.config)))
        with pytest.raises(ValueError, match=r"do(es)? not fit|tokenizer"):
            fresh.load_weights({}, config)
        fresh.load_weights(given, config)
        assert_equal_states(fresh.state_dict()[self.weights], reference.states[-1][self.weights])
        assert all(math.isfinite(value) for value in values(fresh.train_epoch(1)).values())

    def test_an_exported_model_predicts_its_example(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """From copies of its sources, plain arrays and JSON."""
        servable = self.reference().trained.servable()
        if servable.predictor is None:
            pytest.skip("has no predictor")
        package = f"exported_{uuid4().hex}"
        copy_sources(servable.predictor, tmp_path / package, "workload")
        monkeypatch.syspath_prepend(str(tmp_path))
        module = importlib.import_module(f"{package}.workload.predictor")
        weights = {name: tensor.numpy() for name, tensor in served_weights(servable.weights).items()}
        predictor = module.Predictor(weights, json.loads(json.dumps(dict(servable.config))))
        example = pd.DataFrame({name: column.tolist() for name, column in servable.example.items()})
        output = predictor.predict(example, **servable.params)
        assert isinstance(output, pd.DataFrame)
        assert len(output)
        for number, file in enumerate(self.earlier):
            shutil.copyfile(file, tmp_path / package / "workload" / f"earlier_{number}.py")
            module = importlib.import_module(f"{package}.workload.earlier_{number}")
            before = module.Predictor(weights, json.loads(json.dumps(dict(servable.config))))
            allowed = inspect.signature(before.predict).parameters
            # A parameter that was added later has its default here, with which nothing changes.
            expected = before.predict(example, **{name: v for name, v in servable.params.items() if name in allowed})
            pd.testing.assert_frame_equal(output, expected, rtol=1e-4, atol=1e-5)

    def test_two_processes_equal_one(self) -> None:
        """In training, and of one trained model in evaluation."""
        self.skip_if_limited("workers")
        alone, whole = self.compared_reference()
        params = {**self.params, **self.compared}
        ranks = run_on_ranks(train_on_rank, self.workload, params, self.data, self.epochs, whole.state)
        (first, first_seen), (second, second_seen) = ranks
        assert first.rows == second.rows, "the ranks disagree"
        assert values(first_seen) == values(second_seen), "the ranks disagree"
        self._assert_trained_alike(whole, first)
        self._assert_trained_alike(first, second)
        self._assert_evaluated_alike(alone.evaluate("validation"), first_seen)

    def _assert_trained_alike(self, one: TwoEpochs, other: TwoEpochs) -> None:
        """Compare metrics and states of both epochs; the optimiser's moments in the states are sums of gradients."""
        tolerance = max(self.tolerance, self.choices)
        assert one.rows.keys() == other.rows.keys()
        for key in one.rows:
            if not self._is_ranked(key.partition("@")[0]):
                assert one.rows[key] == pytest.approx(other.rows[key], rel=tolerance, abs=tolerance), key
        tensors = vectors_by_kind(one.state)
        others = vectors_by_kind(other.state)
        assert tensors.keys() == others.keys()
        for family, tensor in tensors.items():
            difference = torch.linalg.vector_norm(tensor - others[family])
            assert difference <= tolerance * torch.linalg.vector_norm(tensor), family

    def _assert_evaluated_alike(self, one: Evaluation, other: Evaluation) -> None:
        """Rounding may change fewer than one unit in twenty; the means are compared after correction for these."""
        assert one.metrics.keys() == other.metrics.keys()
        assert one.units.keys() == other.units.keys()
        assert np.array_equal(one.units["id"], other.units["id"])
        lost = dict.fromkeys(one.metrics, 0.0)
        for name, column in one.units.items():
            same = np.isclose(column, other.units[name], rtol=self.tolerance, atol=self.tolerance, equal_nan=True)
            assert same.mean() > 0.95, f"unit {name}"
            if name in lost:
                lost[name] = float(np.nansum(column - other.units[name]) / max(1, (~np.isnan(column)).sum()))
        for name, value in one.metrics.items():
            if name in one.units or not self._is_ranked(name):
                expected = other.metrics[name] + lost[name]
                assert value == pytest.approx(expected, rel=self.tolerance, abs=self.tolerance), name

    def _is_ranked(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.ranked)

    def test_a_pack_gives_each_member_what_it_has_apart(self) -> None:
        """Members have their own parameters and seeds, are at different epochs, and join and leave."""
        apart, members = (self._members() for _ in range(2))
        for indices, epochs in (([2], [1]), ([0, 2], [1, 2]), ([0, 1, 2], [2, 1, 3]), ([1, 0], [2, 3])):
            pack = self.workload.pack([members[index] for index in indices])
            trained = pack.train_epoch(epochs)
            seen = pack.evaluate(range(len(indices)), "validation")
            for index, epoch, *results in zip(indices, epochs, trained, seen, strict=True):
                alone = [apart[index].train_epoch(epoch), apart[index].evaluate("validation")]
                assert [values(result) for result in results] == [values(result) for result in alone]
        for one, other in zip(apart, members):
            assert_equal_states(one.state_dict(), other.state_dict())
        assert [values(one.train_epoch(4)) for one in apart] == [values(one.train_epoch(4)) for one in members]

    def test_a_member_that_diverges_leaves_its_pack_as_it_was(self) -> None:
        apart, members = (self._members() for _ in range(2))
        members[1].load_state_dict(with_nan(members[1].state_dict()))
        pack = self.workload.pack(members)
        trained = pack.train_epoch([1, 1, 1])
        for index in (0, 2):
            assert values(trained[index]) == values(apart[index].train_epoch(1))
            assert_equal_states(members[index].state_dict(), apart[index].state_dict())

    def _members(self) -> list[Any]:
        """Three workloads that fit one pack; skips if the workload cannot be packed."""
        base = Runtime(device=torch.device("cpu"), data=self.data, seed=7, epochs=self.epochs)
        params = [self.workload.Params(**{**self.params, **own}) for own in self.pack]
        first = self.workload(params[0], base)
        if not isinstance(first, Packable) or first.pack_shape() is None:
            pytest.skip("trains apart")
        members = [self.workload(own, replace(base, seed=7 + index)) for index, own in enumerate(params)]
        assert len({member.pack_shape() for member in members}) == 1
        assert self.workload.pack_size(params[0], torch.device("cpu")) >= 1
        return members
