"""Packed trials in one process: reports, checkpoints and ends equal those of separate training."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.config.plan import Plan
from orchestrator.config.spec import ExperimentSpec, Resources, Search, SweepSpec
from orchestrator.engine import checkpoint
from orchestrator.errors import RunFailed, UserError
from orchestrator.runs import worker
from orchestrator.storage.settings import resolve
from orchestrator.sweeps import estimate
from orchestrator.sweeps.pack_plan import PackRunner, capacities, pack_size, run_together
from tests.support.toy import Counted, Toy
from workloads import catalog, memory
from workloads.contract import Evaluation, Metrics, Split

CPU = torch.device("cpu")
EPOCHS = 8


class PackedToys:
    """Trains the members one after the other. The tests check which member is trained when, not the speed."""

    trained: list[list[int]]

    def __init__(self, members: Sequence[PackableToy]) -> None:
        self.members = members

    def train_epoch(self, epochs: Sequence[int]) -> list[Metrics]:
        PackedToys.trained.append(list(epochs))
        return [member.train_epoch(epoch) for member, epoch in zip(self.members, epochs, strict=True)]

    def evaluate(self, members: Sequence[int], split: Split) -> list[Evaluation]:
        return [self.members[place].evaluate(split) for place in members]


class PackableToy(Toy):
    """A toy with one shape for each momentum. 0.9 cannot be packed, two of 0.8 fit, and packs of 0.7 fail."""

    def pack_shape(self) -> Hashable | None:
        return None if self.params.momentum == 0.9 else self.params.momentum

    def pack_bytes(self) -> int:
        return 100

    @classmethod
    def pack_size(cls, params: Any, device: torch.device) -> int:
        return 4 if device.type == "cuda" else 2

    @classmethod
    def pack(cls, members: Sequence[PackableToy]) -> PackedToys:
        if members[0].params.momentum == 0.8 and len(members) > 2:
            raise MemoryError("these do not fit")
        if members[0].params.momentum == 0.7:
            raise ValueError("these cannot be together")
        return PackedToys(members)


class PretrainedPackableToy(PackableToy):
    """A toy whose initial state is evaluated before any epoch."""

    pretrained = True


@pytest.fixture(autouse=True)
def packable(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {
        "toy": catalog.Entry("tests.support.toy:Params", f"{__name__}:PackableToy", "To be packed."),
        "pretrained": catalog.Entry("tests.support.toy:Params", f"{__name__}:PretrainedPackableToy", "Trained before."),
        "counted": catalog.Entry("tests.support.toy:Params", f"{__name__}:CountedToy", "Counts the others."),
        "cyclic": catalog.Entry("tests.support.toy:Params", f"{__name__}:CyclicToy", "Refers to itself."),
        "plain": catalog.Entry("tests.support.toy:Params", "tests.support.toy:Toy", "Not to be packed."),
    }
    for name, entry in entries.items():
        monkeypatch.setitem(catalog.BUILT_IN, name, entry)
    PackedToys.trained = []


def spec_of(number: int, plan: Mapping[str, Any], workload: str = "toy", **params: Any) -> ExperimentSpec:
    full = {"lr": 0.05 + 0.01 * number, **params}
    settings = Plan(**{"epochs": EPOCHS, "refit": True, "decide_at": (3,)} | dict(plan))
    return ExperimentSpec(workload=workload, params=full, plan=settings, seed=number)


class Book:
    """Replaces the manager: hands out specs and keeps the reports."""

    def __init__(self, folder: Path, specs: Sequence[ExperimentSpec], stops: Mapping[int, int] | None = None) -> None:
        self.folder, self.specs, self.stops = folder, list(specs), dict(stops or {})
        self.given: list[int] = []
        self.told: dict[int, list[dict[str, Any]]] = {}
        self.charged: list[tuple[int, int]] = []

    def hold(self, seed_run: int, of: int) -> None:
        if (seed_run, of) not in self.charged:
            self.charged.append((seed_run, of))

    def next(self, *, hold: bool) -> dict[str, Any] | None:
        assert not hold, "its share of the devices is not known yet"
        number = len(self.given)
        if number == len(self.specs):
            return None
        self.given.append(number)
        return self.config(number)

    def config(self, number: int) -> dict[str, Any]:
        return {
            "number": number,
            "spec": self.specs[number].model_dump(mode="json"),
            "folder": str(self.folder / str(number)),
            "data": str(self.folder),
            "keep": 2,
            "save_at_rungs": False,
            "measure": [],
        }

    def result(self, seed_run: int, payload: Mapping[str, Any]) -> bool:
        self.told.setdefault(seed_run, []).append(dict(payload))
        return bool(payload["done"]) or payload.get("epoch", 0) >= self.stops.get(seed_run, EPOCHS + 1)

    def rows(self, seed_run: int) -> list[Any]:
        return [(epoch, metrics) for payload in self.told[seed_run] for epoch, _, metrics in payload["rows"]]


def apart(book: Book, number: int) -> list[Any]:
    work = worker.experiment(book.specs[number], book.folder, CPU, final=False)
    return [(row.epoch, dict(row.metrics)) for report in work.stream() for row in report.rows]


def together(book: Book, size: int, **runner: Any) -> None:
    run_together(book, PackRunner(CPU, **runner), size)  # type: ignore[arg-type]


def test_rows_of_packed_trials_equal_those_of_separate_training(tmp_path: Path) -> None:
    book = Book(tmp_path, [spec_of(number, {}) for number in range(5)])
    together(book, size=3)
    for number in range(5):
        assert book.rows(number) == apart(book, number)
        assert [payload["epoch"] for payload in book.told[number]] == [3, EPOCHS]
        assert book.told[number][-1]["ended"] == "epochs"
        assert (tmp_path / str(number) / worker.UNITS).exists()
    assert max(len(epochs) for epochs in PackedToys.trained) == 3


def test_pack_evaluates_pretrained_weights_before_training(tmp_path: Path) -> None:
    book = Book(tmp_path, [spec_of(number, {}, workload="pretrained") for number in range(2)])
    together(book, size=2)
    for number in range(2):
        assert book.rows(number) == apart(book, number)
        assert [epoch for epoch, _ in book.rows(number)] == list(range(EPOCHS + 1))
        assert [payload["epoch"] for payload in book.told[number]] == [3, EPOCHS], "epoch 0 is not a rung"
    assert PackedToys.trained[0] == [1, 1]


def test_next_trial_joins_a_pack_when_a_member_is_stopped(tmp_path: Path) -> None:
    """The next trial joins at its first epoch, while the others are further."""
    book = Book(tmp_path, [spec_of(number, {}) for number in range(4)], stops={0: 3})
    together(book, size=3)
    assert [epoch for epoch, _ in book.rows(0)] == [1, 2, 3]
    assert [4, 4, 1] in PackedToys.trained
    assert book.rows(3) == apart(book, 3)


def test_the_trials_of_a_process_are_charged_all_of_its_devices_to_the_end(tmp_path: Path) -> None:
    book = Book(tmp_path, [spec_of(number, {}) for number in range(3)], stops={0: 3, 1: 3})
    together(book, size=3)
    assert book.charged == [(0, 3), (1, 3), (2, 3), (2, 1)]


def test_trials_of_other_shapes_or_without_packing_share_a_process(tmp_path: Path) -> None:
    specs = [
        *(spec_of(number, {}) for number in range(2)),
        *(spec_of(number, {}, momentum=0.3) for number in (2, 3)),
        spec_of(4, {}, momentum=0.9),
        spec_of(5, {}, workload="plain"),
        spec_of(6, {"evaluate_every": 2}),
        spec_of(7, {"patience": 1}),
    ]
    book = Book(tmp_path, specs)
    together(book, size=8)
    assert all(book.rows(number) == apart(book, number) for number in range(8))
    assert {len(epochs) for epochs in PackedToys.trained} <= {4, 3, 2}
    assert book.told[7][-1]["ended"] == "patience"


def test_an_error_ends_its_trial_alone(tmp_path: Path) -> None:
    specs = [spec_of(0, {}), spec_of(1, {}, nan_at=5), spec_of(2, {}, unknown=1), spec_of(3, {})]
    book = Book(tmp_path, specs)
    together(book, size=4)
    assert book.told[1][-1]["error"] == "train/loss is nan at epoch 5"
    assert [epoch for epoch, _ in book.rows(1)] == [1, 2, 3, 4]
    assert "unknown" in book.told[2][-1]["error"]
    assert all(book.rows(number) == apart(book, number) for number in (0, 3))


def test_a_pack_that_does_not_fit_is_halved(tmp_path: Path) -> None:
    book = Book(tmp_path, [spec_of(number, {}, momentum=0.8) for number in range(5)])
    together(book, size=5)
    assert all(book.rows(number) == apart(book, number) for number in range(5))
    assert {len(epochs) for epochs in PackedToys.trained} == {2}


def test_members_of_a_pack_that_fails_are_trained_apart(tmp_path: Path) -> None:
    """An error of one of them must fail only this one."""
    specs = [spec_of(number, {}, momentum=0.7, raise_at=4 if number == 1 else None) for number in range(3)]
    book = Book(tmp_path, [*specs, spec_of(3, {})])
    together(book, size=4)
    assert all(book.rows(number) == apart(book, number) for number in (0, 2, 3))
    assert "the third layer is missing" in book.told[1][-1]["error"]


def test_a_trial_for_which_there_is_no_memory_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = Book(tmp_path, [spec_of(number, {}) for number in range(4)])
    runner = PackRunner(CPU)
    begun = runner._open
    refused = []

    def small(config: Mapping[str, Any]) -> Any:
        if len(runner._trials) == 2:
            refused.append(config["number"])
            raise torch.OutOfMemoryError("CUDA out of memory")
        return begun(config)

    monkeypatch.setattr(runner, "_open", small)
    run_together(book, runner, 4)  # type: ignore[arg-type]
    assert {len(epochs) for epochs in PackedToys.trained} == {2}
    assert all(book.rows(number) == apart(book, number) for number in range(4))
    assert refused == [2], "it is retried when another trial has ended"


def test_a_trial_that_does_not_fit_alone_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(config: Mapping[str, Any]) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    runner = PackRunner(CPU)
    monkeypatch.setattr(runner, "_open", opened)
    runner.begin(Book(tmp_path, [spec_of(0, {})]).config(0))
    ((seed_run, payload),) = runner.step()
    assert seed_run == 0
    assert payload["error"].startswith("out of memory (CUDA out of memory): accumulate=auto")
    assert not len(runner)


class CountedToy(Counted, PackableToy):
    """A packable toy that counts the other instances."""


class CyclicToy(CountedToy):
    """A toy that needs to be the only instance, and refers to itself."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.myself = self
        if self.counts[-1]:
            raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize("size", [1, 2])
def test_ended_trials_are_freed_before_the_next_one_is_built(size: int, tmp_path: Path) -> None:
    book = Book(tmp_path, [spec_of(number, {}, workload="counted") for number in range(3 * size)])
    with Counted.without_collector() as counts:
        together(book, size)
        assert counts == [*range(size)] * 3
        assert not Counted.existing, "the winner of a local sweep needs the memory"


def test_members_of_a_too_large_pack_are_freed_before_they_are_rebuilt(tmp_path: Path) -> None:
    book = Book(tmp_path, [spec_of(number, {}, workload="counted", momentum=0.8) for number in range(4)])
    with Counted.without_collector() as counts:
        together(book, 4)
        assert counts == [*range(4)] * 2


def test_trial_out_of_memory_is_retried_after_reference_cycles_are_freed(tmp_path: Path) -> None:
    book = Book(tmp_path, [spec_of(number, {}, workload="cyclic") for number in range(3)])
    with Counted.without_collector() as counts:
        together(book, 1)
        assert counts == [0, 1, 0, 1, 0], "each is retried once, after the last one is freed"
    assert [book.told[number][-1].get("ended") for number in range(3)] == ["epochs"] * 3


def test_room_requires_memory_for_a_pack_of_one_more_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = Book(tmp_path, [spec_of(number, {}) for number in range(2)])
    runner = PackRunner(CPU)
    for number in range(2):
        runner.begin(book.config(number))
    monkeypatch.setattr(runner, "_device", torch.device("cuda"))
    for available, room in ((299, False), (300, True)):
        monkeypatch.setattr(memory, "available_bytes", lambda device, available=available: available)
        assert runner._has_room() == room


def test_accumulate_auto_goes_on_in_smaller_parts(tmp_path: Path) -> None:
    book = Book(tmp_path, [spec_of(number, {"accumulate": "auto"}, fits=2, batch_size=8) for number in range(2)])
    together(book, size=2)
    for number in range(2):
        expected = Book(tmp_path / "apart", [spec_of(number, {})])
        assert dict(book.rows(number)) == dict(apart(expected, 0))
        assert (tmp_path / str(number) / "accumulate.json").read_text() == "4"


def test_stopped_pack_saves_all_trials_and_each_resumes_separately(tmp_path: Path) -> None:
    book = Book(tmp_path, [spec_of(number, {}) for number in range(3)])
    asked = [0]

    def stop() -> bool:
        asked[0] += 1
        return asked[0] > 2 * 3  # in the third epoch of each

    together(book, size=3, stop=stop)
    for number in range(3):
        assert [epoch for epoch, _ in book.rows(number)] == [1, 2, 3]
        found = checkpoint.latest(tmp_path / str(number))
        assert found is not None
        resumed = worker.experiment(book.specs[number], tmp_path, CPU, final=False)
        state = checkpoint.read(found, book.specs[number].identity)
        rows = {row.epoch: dict(row.metrics) for report in resumed.stream(state) for row in report.rows}
        assert rows == dict(apart(book, number))


def test_pack_members_resume_from_checkpoints_of_separate_trials(tmp_path: Path) -> None:
    specs = [spec_of(number, {}) for number in range(2)]
    book = Book(tmp_path, specs)
    for number, epochs in enumerate((4, EPOCHS)):  # the second one had only to report its end
        work = worker.experiment(specs[number], tmp_path, CPU, final=False, stop=_after(epochs))
        for _ in work.stream():
            pass
        worker.save(work, tmp_path / str(number))
    together(book, size=2)
    for number in range(2):
        assert dict(book.rows(number)) == dict(apart(book, number))
        assert book.told[number][-1]["ended"] == "epochs"


def _after(epochs: int) -> Callable[[], bool]:
    asked = iter(range(1, epochs + 1))
    return lambda: next(asked) == epochs


def test_training_time_is_split_equally_among_pack_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.toy import Clock

    clock = Clock()
    for module in ("orchestrator.sweeps.pack_plan", "orchestrator.sweeps.pack_trial", "tests.support.toy"):
        monkeypatch.setattr(f"{module}.time", clock)
    book = Book(tmp_path, [spec_of(0, {}, slow=3.0), spec_of(1, {}, slow=1.0)])
    together(book, size=2)
    assert [book.told[number][-1]["train_seconds"] for number in range(2)] == [2.0 * EPOCHS] * 2
    assert len(book.told[0]) == EPOCHS, "an epoch of a second or more is reported separately"


@pytest.fixture
def sweep(tmp_path: Path) -> Callable[..., SweepSpec]:
    (tmp_path / "mine.py").write_text("def space(trial):\n    return {'lr': trial.suggest_float('lr', 0.1, 0.2)}\n")

    def describe(workload: str = "toy", gpus: float = 0, **asked: Any) -> SweepSpec:
        search = Search(**{"space": f"{tmp_path}/mine.py:space", "trials": 64} | asked)
        return SweepSpec(workload=workload, resources=Resources(gpus_per_worker=gpus), search=search)

    return describe


def test_pack_size_follows_the_pack_setting_device_and_workload(sweep: Callable[..., SweepSpec]) -> None:
    assert [pack_size(sweep(pack=asked)) for asked in ("auto", "off", 1, 7)] == [2, 1, 1, 7]
    assert pack_size(sweep(gpus=1)) == 4
    assert pack_size(sweep(scheduler="pbt")) == 1
    assert [pack_size(sweep("plain", pack=asked)) for asked in ("auto", "off", 1)] == [1, 1, 1]
    with pytest.raises(UserError, match="plain cannot train trials together"):
        pack_size(sweep("plain", pack=4))


@pytest.mark.parametrize(
    ("fitting", "asked", "expected"),
    [
        (4, {"pack": 8}, (8, 8, 8, 8)),
        (4, {"pack": 8, "concurrency": 9}, (3, 2, 2, 2)),
        (4, {"pack": 8, "concurrency": 3}, (1, 1, 1)),
        (4, {"pack": 8, "concurrency": 99}, (8, 8, 8, 8)),
        (4, {"trials": 3, "pack": 8}, (1, 1, 1)),
        (4, {"trials": 9, "pack": 8}, (3, 2, 2, 2)),
        (2, {"trials": 3, "seeds": 2, "pack": 8}, (3, 3)),
        (1, {}, (2,)),
        (3, {"pack": "off"}, (1, 1, 1)),
        (3, {"scheduler": "pbt"}, (1, 1, 1)),
    ],
)
def test_capacities_respect_concurrency_and_the_number_of_trials(
    fitting: int, asked: dict[str, Any], expected: tuple[int, ...], sweep: Callable[..., SweepSpec]
) -> None:
    found = capacities(sweep(**asked), fitting)
    assert found == expected
    assert sum(found) <= asked.get("concurrency", sum(found))


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ({"gpus_per_worker": 1, "max_gpus": 2}, (1, 1)),
        ({"gpus_per_worker": 0.25, "max_gpus": 1}, (1, 1, 1, 1)),
        ({"gpus_per_worker": 2, "workers": 2, "max_gpus": 7}, (1,)),
        ({"gpus_per_worker": 1, "max_gpus": 99}, (1,) * 6),
        ({"max_gpus": 1}, (1,) * 6),
    ],
)
def test_capacities_respect_max_gpus(
    devices: dict[str, Any], expected: tuple[int, ...], sweep: Callable[..., SweepSpec]
) -> None:
    asked = sweep(pack="off").model_copy(update={"resources": Resources(**devices)})
    assert capacities(asked, 6) == expected


def test_probe_of_a_pack_reports_the_epoch_time_per_trial(
    sweep: Callable[..., SweepSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The members are trained in turn, half a second each, so that together they take twice as long as alone."""
    from tests.support.toy import Clock

    clock = Clock()
    for module in ("orchestrator.sweeps.pack_trial", "orchestrator.sweeps.estimate", "tests.support.toy"):
        monkeypatch.setattr(f"{module}.time", clock)
    (tmp_path / "mine.py").write_text(
        "def space(trial):\n    return {'lr': trial.suggest_float('lr', 0.1, 0.2), 'slow': 0.5}\n"
    )
    found = estimate.measure(sweep(), resolve({"tracking": "none"}), together=2)
    assert (found.alone_seconds, found.epoch_seconds, found.start_seconds) == (0.5, 0.5, 0.5)
    assert PackedToys.trained == [[1, 1], [2, 2]]


def test_failed_probe_raises_run_failed_with_its_cause(sweep: Callable[..., SweepSpec], tmp_path: Path) -> None:
    nan_at, settings = "1 if trial.number else None", resolve({"tracking": "none"})
    text = "def space(trial):\n    return {'lr': trial.suggest_float('lr', 0.1, 0.2), 'nan_at': NAN_AT}\n"
    (tmp_path / "mine.py").write_text(text.replace("NAN_AT", nan_at))
    with pytest.raises(RunFailed, match=r"^The probe failed: train/loss is nan at epoch 1$"):
        estimate.measure(sweep(), settings, together=2)
    (tmp_path / "mine.py").write_text(text.replace("NAN_AT", "2"))
    with pytest.raises(RunFailed, match=r"^The probe failed: train/loss is nan at epoch 2$"):
        estimate.measure(sweep(), settings)
