"""The contract between engine and workload: types, no behaviour.

A workload is a class with two attributes and six methods (:class:`Workload`). It inherits nothing and knows
nothing of Ray, MLflow or Optuna. The engine builds it, calls it, and turns it into a stream of reports.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from pydantic import BaseModel

if TYPE_CHECKING:
    import numpy as np
    import torch

T = TypeVar("T")

Split: TypeAlias = Literal["validation", "test"]
Precision: TypeAlias = Literal["fp32", "bf16"]
Direction: TypeAlias = Literal["max", "min"]

Metrics: TypeAlias = Mapping[str, float]
"""Names without a split (``ndcg_at_20``); the engine adds ``train/``, ``validation/`` or ``test/``."""

Columns: TypeAlias = "Mapping[str, np.ndarray[Any, Any]]"
"""A table: column name to a one-dimensional array, all of one length."""

State: TypeAlias = dict[Any, Any]
"""Nested dicts and lists of tensors and JSON scalars. Nothing that would need pickle."""

MID_RUN: dict[str, Any] = {"mid_run": True}
"""``json_schema_extra`` of a parameter that may change while a model trains: ``load_state_dict`` leaves it alone."""

RESERVED = (
    *("epochs", "patience", "evaluate_every", "checkpoint_every", "steps_per_epoch", "refit", "objective", "precision"),
    *("accumulate", "decide_at", "workers", "min_workers", "gpus_per_worker", "cpus_per_worker", "max_gpus"),
    *("seed", "workload"),
)
"""The engine's own settings, which stand beside the parameters: no parameter has one of these names."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What sweeps, checkpoints and early stopping select by.

    ``metric`` is the name without a split; it is read on the validation split. ``refit`` says that holding the
    validation part out costs quality, so that the engine by default trains once more on train + validation for
    the selected number of epochs before it opens the test split. ``test_epochs`` are epochs (ends of sessions) at
    which the engine also evaluates the final model on test and seals the values: logged, never shown to whatever
    selects. A trial of a sweep is no final model and has none. A sweep's winner that is not refitted has the test
    values of its end alone: what is to be known of earlier epochs belongs in the tables of that evaluation.
    """

    metric: str
    direction: Direction
    refit: bool = False
    test_epochs: tuple[int, ...] = ()


def _same(value: T) -> T:
    return value


@dataclass(frozen=True, slots=True)
class Runtime:
    """Where and how a workload runs; everything that is not a hyperparameter.

    ``epochs`` is the planned number (for schedules). ``steps_per_epoch`` cuts a long pass into virtual epochs
    (None: an epoch is one pass). ``accumulate`` splits each global batch into that many micro-batches.
    ``holdout`` is False in a refit: train on train + validation. ``broadcast(value)`` returns rank 0's value on
    every rank; it is a collective, so every rank calls it equally often.
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
    broadcast: Callable[[Any], Any] = _same


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a pass over a split gives.

    ``metrics``: reduced scalars, the same on every rank. ``units``: one row a user, query or pair, its ``id``
    column first, on rank 0 (empty elsewhere): what intervals and gates are computed from. ``tables``: named
    tables, kept as Parquet and drawn where reports are. Their columns say how: ``x``, ``y`` and, if points are of
    several classes, the text column ``label`` are a scatter plot (an embedding); otherwise the first column is the
    horizontal axis and each further column of real numbers a line over it (curves, densities, a reliability diagram
    beside its diagonal), NaN a gap. Integers and texts beside them, such as counts, are data and not drawn, and a
    table without a line or a point is data alone.
    """

    metrics: Metrics
    units: Columns = field(default_factory=dict)
    tables: Mapping[str, Columns] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Preset:
    """Settings of a source under one name: parameters and keys of the plan, as ``key=value`` gives them."""

    source: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Servable:
    """What the registry stores: weights and a standalone predictor, no pickle.

    ``predictor`` is a Python source file that lies beside a workload's module (elsewhere it could be a stranger's),
    imports neither ``orchestrator`` nor ``workloads`` and defines ``class Predictor`` with
    ``__init__(weights: dict[str, np.ndarray], config: dict)`` and
    ``predict(inputs: pandas.DataFrame, **params) -> pandas.DataFrame``. Files that it imports by relative imports are
    exported with it (:mod:`workloads.predictor_sources`). ``weights`` may be on any device and part of a graph: the
    export copies them. ``example`` are input columns (``bytes`` in one of objects where the input is binary),
    ``params`` the keyword parameters of ``predict`` with their defaults, ``requirements`` the packages that these files
    import. ``tags`` are what the registry's version says of itself, such as where an index lies that the model belongs
    to.
    """

    predictor: Path
    weights: Mapping[str, torch.Tensor]
    config: Mapping[str, Any]
    example: Columns
    params: Mapping[str, Any]
    requirements: tuple[str, ...]
    tags: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class Workload(Protocol):
    """Two attributes, six methods. Every method but ``servable`` may be a collective over the ranks."""

    Params: ClassVar[type[BaseModel]]
    """Every hyperparameter: type, bounds, default and source. Two methods it may have are asked before anything starts,
    import no PyTorch, and raise ValueError in one sentence: ``check_plan(epochs, refit)`` for a plan that these values
    can not be trained by, and ``check_data(root, holdout)`` for data that they can not be trained on. ``root`` is the
    data root, under which the dataset is there and intact; without ``holdout`` no part is ever held out for validation.
    A class attribute ``presets`` that it may have maps names to a :class:`Preset` each, for ``--preset NAME``; one
    named ``tables`` maps a parameter to the rows of its values (:mod:`workloads.loss_table`), which
    ``orchestrator workloads NAME`` shows.

    No name is one of :data:`RESERVED`. ``batch_size`` is the global batch, which workers and micro-batches divide.
    Where the catalog's entry names kinds of data, ``dataset``, ``dataset_size``, ``dataset_corrupt``,
    ``dataset_unknown``, ``dataset_noise`` and ``split`` say what is read of ours. What begins with ``dataset``,
    ``split`` or ``eval`` says what is evaluated on: models that differ there are not compared.
    """

    objective: Objective | tuple[Objective, ...]
    """What to select by; several objectives are a tuple."""

    def __init__(self, params: Any, runtime: Runtime) -> None:
        """Build data, model and optimiser. Randomness comes from ``runtime.seed`` alone."""

    def train_epoch(self, epoch: int) -> Metrics | Evaluation:
        """Train epoch ``epoch`` (from 1). All ranks return the same keys and values, already reduced.

        Draws are derived from (seed, stream, epoch), never carried over, so that a resume continues exactly.
        """
        ...

    def evaluate(self, split: Split) -> Evaluation:
        """Measure on a split with no side effect on the state or on any random stream."""
        ...

    def state_dict(self) -> State:
        """Everything a fresh object needs to go on: weights, optimiser, schedule, buffers, stream position."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Take a state over. What may change mid-run (learning rate, loss weights) stays with the parameters."""
        ...

    def servable(self) -> Servable:
        """The trained model in the form the registry stores."""
        ...


class Pack(Protocol):
    """Workloads of one shape whose states lie side by side, so that one launch serves all of them.

    A member stays an ordinary workload: each of its own methods works as before, at any time. Members may be at
    different epochs and need not begin or end together; when one comes or goes, a new pack is made of those there are.
    """

    def train_epoch(self, epochs: Sequence[int]) -> Sequence[Metrics | Evaluation]:
        """Train every member, in the order of the pack, for its epoch of the given number.

        Results and states are those of each member's own ``train_epoch``: bitwise on a CPU with one thread, elsewhere
        within the rounding of float32. A member that diverges leaves the others untouched.
        """
        ...

    def evaluate(self, members: Sequence[int], split: Split) -> Sequence[Evaluation]:
        """What each of some members' own ``evaluate`` gives; members by their places in the pack."""
        ...


@runtime_checkable
class Packable(Protocol):
    """An optional capability of a workload: several of one class, trained together."""

    def pack_shape(self) -> Hashable | None:
        """Equal for workloads that can be in one pack; None for one that has to be trained apart."""

    @classmethod
    def pack_size(cls, params: Any, device: torch.device) -> int:
        """How many members pay on ``device``; 1 where none beside the first does. Builds and loads nothing."""
        ...

    @classmethod
    def pack(cls, members: Sequence[Any]) -> Pack:
        """A pack of workloads of one shape; their states move into storage that they share."""
        ...


@runtime_checkable
class Pretrained(Protocol):
    """An optional capability of a workload: its model may be usable before any training."""

    @property
    def pretrained(self) -> bool:
        """Whether all weights that predict are pretrained ones.

        The engine then evaluates on validation before the first epoch, as epoch 0, and may select that epoch.
        """
        ...
