"""The contract between engine and workload: types, no behaviour.

A workload is a class with two attributes and six methods (:class:`Workload`). It has no base class and does not
depend on Ray, MLflow or Optuna. The engine builds it, calls it, and produces a stream of reports.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar, get_args, runtime_checkable

from pydantic import BaseModel

if TYPE_CHECKING:
    import numpy as np
    import torch

T = TypeVar("T")

Split: TypeAlias = Literal["validation", "test"]
Precision: TypeAlias = Literal["fp32", "tf32", "bf16"]
Direction: TypeAlias = Literal["max", "min"]

Metrics: TypeAlias = Mapping[str, float]
"""Names without a split (``ndcg_at_20``); the engine adds ``train/``, ``validation/`` or ``test/``."""

Columns: TypeAlias = "Mapping[str, np.ndarray[Any, Any]]"
"""A table: column names to one-dimensional arrays of equal length."""

State: TypeAlias = dict[Any, Any]
"""Nested dicts and lists of tensors and JSON scalars; nothing that needs pickle."""

MID_RUN: dict[str, Any] = {"mid_run": True}
"""``json_schema_extra`` of a parameter that may change during training: ``load_state_dict`` does not restore it."""

RESERVED = (
    *("epochs", "patience", "evaluate_every", "checkpoint_every", "steps_per_epoch", "refit", "objective", "precision"),
    *("accumulate", "decide_at", "workers", "min_workers", "gpus_per_worker", "cpus_per_worker", "max_gpus"),
    *("seed", "workload", "deterministic", "init", "abstention_part"),
    *("log_every",),
)
"""Names of the engine's own settings, which no parameter may have."""

MEMBERS = ("Params", "objective", "train_epoch", "evaluate", "state_dict", "load_state_dict", "servable")
"""Attributes and methods that a workload's class must have."""

LIMITS = ("workers", "accumulate", "steps_per_epoch", "log_every", "refit", "patience", "units", "lr")
"""Names that :class:`Limited` may have."""


@dataclass(frozen=True, slots=True)
class Objective:
    """The metric by which sweeps, checkpoints and early stopping select.

    ``metric`` is the name without a split; it is read on the validation split. ``refit``: whether, by default, the
    engine trains again on train + validation for the selected number of epochs before it evaluates on test, since
    holding out the validation part costs quality. ``test_epochs`` are epochs (ends of sessions) at
    which the engine also evaluates the final model on test. These values are sealed: logged, but never used for
    selection. A trial of a sweep is not a final model and has none. A sweep's winner that is not refitted has test
    values of its last epoch only; results of earlier epochs belong in the tables of that evaluation.

    Raises ValueError for another direction.
    """

    metric: str
    direction: Direction
    refit: bool = False
    test_epochs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.direction not in get_args(Direction):
            raise ValueError(f"the direction of the objective {self.metric} is {self.direction!r}; allowed: max or min")


def _same(value: T) -> T:
    return value


@dataclass(frozen=True, slots=True)
class Runtime:
    """Where and how a workload runs: everything that is not a hyperparameter.

    ``device``: where to train. ``data``: root folder of the datasets. ``seed``: all random numbers are derived from it.
    ``rank`` and ``world_size``: the number of this worker, from 0, and how many there are; each trains on its part of
    the global batch. ``precision``: of training; ``bf16`` is up to the workload (autocast), the engine sets the rest.
    ``epochs`` is the planned number (for schedules). ``steps_per_epoch`` splits a long pass into virtual epochs
    (None: an epoch is one pass). ``accumulate`` splits each global batch into that many micro-batches.
    ``log_every``: number of steps whose mean is one value of a :class:`StepLogged` workload; 0: none.
    ``holdout`` is False in a refit: train on train + validation. ``abstention_part`` is the share of the queries for
    training and validation that both leave out, in a refit too; the served model abstains by them
    (:mod:`workloads.abstention`). It is above 0 only if ``Params`` has ``abstains = True``. ``broadcast(value)``
    returns rank 0's value on every rank; it is a collective, so every rank calls it equally often.
    """

    device: torch.device
    data: Path
    seed: int
    epochs: int
    rank: int = 0
    world_size: int = 1
    holdout: bool = True
    steps_per_epoch: int | None = None
    precision: Precision = "fp32"
    accumulate: int = 1
    abstention_part: float = 0.0
    log_every: int = 0
    broadcast: Callable[[Any], Any] = _same


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of an evaluation on a split.

    ``metrics``: reduced scalars, the same on every rank. ``units``: one row per user, query or pair, the ``id`` column
    first, on rank 0 (empty elsewhere); confidence intervals and gates are computed from it. ``tables``: named tables,
    stored as Parquet and drawn in reports. Columns ``x``, ``y`` and, for points of several classes, the text column
    ``label`` make a scatter plot (an embedding). Otherwise the first column is the horizontal axis and each further
    column of real numbers is a line (curves, densities, a reliability diagram with its diagonal), with a gap at NaN.
    Columns of integers or text, such as counts, are not drawn.

    A run with a metric that is not finite has diverged. In the final test this holds for objectives only: other such
    metrics are left out with a warning.
    """

    metrics: Metrics
    units: Columns = field(default_factory=dict)
    tables: Mapping[str, Columns] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Preset:
    """Named settings from a source: parameters and keys of the plan, as given by ``key=value``."""

    source: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Servable:
    """What the registry stores: weights and a standalone predictor, without pickle.

    Attributes:
        predictor: a Python source file in the folder of the workload's module (only code from there is trusted). It
            imports neither ``orchestrator`` nor ``workloads`` and defines ``class Predictor`` with
            ``__init__(weights: dict[str, np.ndarray], config: dict)`` and
            ``predict(inputs: pandas.DataFrame, **params) -> pandas.DataFrame``. Files that it imports by relative
            imports are exported with it (:mod:`workloads.predictor_sources`). None for a model that cannot be served,
            which is not logged: its weights stay with the run.
        weights: on any device; they may require gradients and share memory, since the export copies them. The predictor
            gets float32 for types that NumPy lacks, such as bfloat16.
        config: what the predictor gets in addition to the weights.
        example: input columns; an object column of ``bytes`` where the input is binary. Columns of an input that are
            in none of ``example``, ``alternatives`` and ``optional`` do not reach the predictor.
        params: keyword parameters of ``predict`` with their defaults.
        requirements: the packages that the predictor's files import.
        tags: set on the registered version, such as the location of the index that belongs to the model.
        alternatives: columns of as many rows that may be given in the place of those of ``example``; then neither is
            required.
        training: further weights, which only training needs, such as a projection head. They are stored with the model
            for runs that start from it (:class:`Initialisable`); the predictor does not get them.
        optional: columns that may be given in addition.
    """

    predictor: Path | None
    weights: Mapping[str, torch.Tensor]
    config: Mapping[str, Any]
    example: Columns
    params: Mapping[str, Any]
    requirements: tuple[str, ...]
    tags: Mapping[str, str] = field(default_factory=dict)
    alternatives: Columns = field(default_factory=dict)
    training: Mapping[str, torch.Tensor] = field(default_factory=dict)
    optional: Columns = field(default_factory=dict)


@runtime_checkable
class Workload(Protocol):
    """Two attributes, six methods. Every method but ``servable`` may be a collective over the ranks."""

    Params: ClassVar[type[BaseModel]]
    """All hyperparameters: type, bounds, default and source. Optional methods are called before training starts and
    import no PyTorch. They raise ValueError with one sentence: ``check_plan(epochs, refit)`` if these values cannot be
    trained with the plan, ``check_objectives(metrics)`` if validation will not report one of the plan's objectives,
    given by name (unless ``refit=only``), ``check_data(root, holdout)`` if they cannot be trained on the data. ``root``
    is the data root, where the dataset is present and verified; without ``holdout`` no part is held out for validation.
    ``check_accumulate()`` does so for ``accumulate=auto`` if micro-batches would change these values' result; where
    only random draws differ, as dropout's, it returns a sentence to print instead.
    ``check_memory(root, available)`` is called where training is on this machine's CPU, with the free bytes.
    ``input_files(values)``, static, returns the files that training reads in addition to the dataset, by parameter;
    their digests are in the record. ``reads_test(values)``, static, returns True if training uses the test part, which
    the run then says. ``uses_gpu()`` returns False if these values can be trained on a CPU only. The
    optional class attribute ``presets`` maps names to :class:`Preset` objects, for ``--preset NAME``; the optional
    ``tables`` maps a parameter to the rows of its values (:mod:`workloads.loss_table`), which
    ``orchestrator workloads NAME`` shows.

    No name is one of :data:`RESERVED`. ``batch_size`` is the global batch, which workers and micro-batches divide.
    Where the catalog's entry names kinds of data, ``dataset``, ``dataset_size``, ``dataset_corrupt``,
    ``dataset_unknown``, ``dataset_noise``, ``dataset_min_rating`` and ``split`` select what is read of the built-in
    datasets. Parameters that begin with ``dataset``, ``split``, ``eval`` or ``first_stage`` and are not None define the
    evaluation data: models that differ in them are not compared.
    """

    objective: Objective | tuple[Objective, ...]
    """What to select by; a tuple for several objectives. The optional attribute ``directions`` maps further metrics of
    validation to their better direction, ``min`` or ``max``: ``objective=`` refuses the other one. A name may be a
    pattern for several metrics, such as ``ndcg_at_*``."""

    def __init__(self, params: Any, runtime: Runtime) -> None:
        """Build data, model and optimiser. Randomness comes from ``runtime.seed`` alone."""

    def train_epoch(self, epoch: int) -> Metrics | Evaluation:
        """Train epoch ``epoch`` (from 1). All ranks return the same keys and values, already reduced.

        Random numbers are derived from (seed, stream, epoch) and never carried over, so that a resumed run is exact.
        """
        ...

    def evaluate(self, split: Split) -> Evaluation:
        """Evaluate on a split without changing the state or any random stream."""
        ...

    def state_dict(self) -> State:
        """Everything that a new object needs to continue: weights, optimiser, schedule, buffers, stream position."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Restore a state. What may change during a run (learning rate, loss weights) keeps the parameters' values."""
        ...

    def servable(self) -> Servable:
        """The trained model in the form the registry stores."""
        ...


class Pack(Protocol):
    """Workloads of one shape with stacked states, trained together by the same kernel launches.

    A member stays an ordinary workload: its own methods work as before, at any time. Members may be at different
    epochs and need not begin or end at the same time; when one joins or leaves, a new pack is built.
    """

    def train_epoch(self, epochs: Sequence[int]) -> Sequence[Metrics | Evaluation]:
        """Train each member for its epoch; ``epochs`` are in the order of the pack.

        Results and states equal those of each member's own ``train_epoch``: bitwise on a CPU with one thread, elsewhere
        within float32 rounding. A member that diverges does not affect the others.
        """
        ...

    def evaluate(self, members: Sequence[int], split: Split) -> Sequence[Evaluation]:
        """Evaluate the members with these indices; equal to each member's own ``evaluate``."""
        ...


@runtime_checkable
class Packable(Protocol):
    """An optional capability of a workload: several of one class, trained together."""

    def pack_shape(self) -> Hashable | None:
        """A key that is equal for workloads that can share a pack; None for one that must be trained alone."""

    def pack_bytes(self) -> int:
        """Memory on the device that a pack needs for each member in addition to the member's own state."""
        ...

    @classmethod
    def pack_size(cls, params: Any, device: torch.device) -> int:
        """The worthwhile number of members on ``device``; 1 if packing does not pay. Builds and loads nothing."""
        ...

    @classmethod
    def pack(cls, members: Sequence[Any]) -> Pack:
        """Build a pack of workloads of one shape; their states move into shared storage."""
        ...


@runtime_checkable
class Pretrained(Protocol):
    """An optional capability of a workload: its model may be usable without training."""

    @property
    def pretrained(self) -> bool:
        """Whether all weights that predict are pretrained ones.

        The engine then evaluates on validation before the first epoch, as epoch 0, and may select that epoch.
        """
        ...


@runtime_checkable
class Initialisable(Protocol):
    """An optional capability of a workload: training can start from the weights of another of its models (``init=``).

    The engine then evaluates on validation before the first epoch, as epoch 0, and may select that epoch.
    """

    def load_weights(self, weights: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
        """Copy the weights of a model, on a newly built object and on every rank.

        ``weights``: ``weights`` and ``training`` of its :class:`Servable`, on the CPU; ``config``: that of its
        Servable. Optimiser and schedule stay as they are built. Raises ValueError with one sentence that names weights
        that do not fit (:mod:`workloads.initial_weights`).
        """
        ...


@runtime_checkable
class Limited(Protocol):
    """An optional declaration of a workload: what of the engine it cannot do, such as one made from another trainer.

    ``limits`` has the reasons by name. ``workers``, ``accumulate``, ``steps_per_epoch``, ``log_every``, ``refit``
    and ``patience`` are settings, which are refused before anything starts. ``units``: evaluations have no rows of
    single units. ``lr``: a restored state brings its own learning rate. Other names are an error. The conformance suite
    skips what is declared, with the reason. Params whose values rule out a setting declare it in a property ``limits``
    of theirs.
    """

    limits: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StepValues:
    """Means over the last steps up to ``step``, counted from 1 over all epochs; ``time`` in seconds since 1970."""

    step: int
    time: float
    metrics: Metrics


@runtime_checkable
class StepLogged(Protocol):
    """An optional capability of a workload: values within an epoch (``log_every=N``)."""

    def take_steps(self) -> Sequence[StepValues]:
        """The values of the epoch that was trained last, one for each ``runtime.log_every`` steps; rank 0's count.

        Values stay on the device until so many steps are over (:class:`workloads.step_log.StepLog`). The engine calls
        it after each epoch, on every rank.
        """
        ...
