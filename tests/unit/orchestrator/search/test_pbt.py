"""Population based training: takeovers, perturbed parameters, and equal results after any killed process."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from optuna import Trial as OptunaTrial
from optuna import create_trial
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from orchestrator.engine import checkpoint
from orchestrator.engine.checkpoint import Checkpoint
from orchestrator.errors import UNAVAILABLE, UserError
from orchestrator.report import trials
from orchestrator.search import members, pbt
from orchestrator.search.pbt import Population, pairs, perturb
from orchestrator.search.schedulers import rungs
from orchestrator.search.spaces import Space
from orchestrator.search.study import Trial
from tests.support.refusals import refused
from tests.support.searching import ERROR, attributes, begin, rows, states, sweep

EPOCHS = 6
RUNGS = (1, 2, 3, 4, 5)
LR = FloatDistribution(0.01, 0.2)


# Choice of donors


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9, 16, 33])
@pytest.mark.parametrize("seed", range(5))
def test_the_worst_quarter_takes_over_from_the_best(size: int, seed: int) -> None:
    """Compared with the definition: a quarter, at least one, at most half, ties broken by the number."""
    draw = random.Random(seed)
    scores = {number: float(draw.randint(0, size)) for number in draw.sample(range(100), size)}
    count = min(max(1, round(size / 4)), size // 2)
    ranked = sorted(scores, key=lambda n: (-scores[n], n))
    best, worst = ranked[:count], ranked[size - count :]
    found = pairs(scores, random.Random(seed))
    assert set(found.values()) <= set(best)
    expected = {loser for loser in worst if scores[loser] < min(scores[b] for b in best)} if count else set()
    assert set(found) == expected
    assert found == pairs(dict(reversed(scores.items())), random.Random(seed)), "the order of reports must not matter"


def test_no_member_takes_over_when_all_scores_are_equal() -> None:
    assert pairs(dict.fromkeys(range(8), 0.5), random.Random(0)) == {}


def test_donors_are_drawn_from_the_whole_best_quarter() -> None:
    scores = {number: float(number) for number in range(12)}
    taken = {donor for seed in range(40) for donor in pairs(scores, random.Random(seed)).values()}
    assert taken == {9, 10, 11}


# Perturbation


def reference(value: float, distribution: Any, draw: random.Random) -> set[float]:
    """All possible values of a parameter that is scaled, not redrawn."""
    moved = {value * 0.8, value * 1.2}
    if distribution.step:
        low, step = distribution.low, distribution.step
        moved = {low + round((m - low) / step) * step for m in moved}
    return {min(max(m, distribution.low), distribution.high) for m in moved}


@pytest.mark.parametrize(
    ("distribution", "value"),
    [
        (FloatDistribution(0.01, 0.2), 0.1),
        (FloatDistribution(0.01, 0.2), 0.19),
        (FloatDistribution(1e-4, 1e-1, log=True), 1e-4),
        (FloatDistribution(0.0, 0.3, step=0.1), 0.2),
        (IntDistribution(2, 64), 10),
        (IntDistribution(2, 64, log=True), 60),
        (IntDistribution(2, 14, step=4), 10),
        (CategoricalDistribution(["a", None, True]), None),
    ],
)
def test_perturbed_parameter_is_scaled_or_redrawn_within_its_range(distribution: BaseDistribution, value: Any) -> None:
    found = [perturb({"p": value, "other": 7}, {"p": distribution}, ["p"], random.Random(seed)) for seed in range(400)]
    assert all(result["other"] == 7 for result in found)
    results = [result["p"] for result in found]
    for result in results:  # raises ValueError outside the range
        create_trial(params={"p": result}, distributions={"p": distribution}, value=0.0)
    assert {type(result) for result in results} <= {type(value), str, bool, type(None)}
    if isinstance(distribution, CategoricalDistribution):
        kept = sum(result is value for result in results)
        assert pytest.approx(kept, abs=40) == 400 * (0.75 + 0.25 / 3)
        assert set(results) == {"a", None, True}
        return
    moved = reference(value, distribution, random.Random())
    elsewhere = sum(not any(result == pytest.approx(m) for m in moved) for result in results)
    assert elsewhere <= 400 * 0.25 + 40
    for one in moved:
        assert sum(result == pytest.approx(one) for result in results) > 400 * 0.2
    if isinstance(distribution, FloatDistribution) and not distribution.step:
        assert elsewhere == pytest.approx(100, abs=40), "one in four is redrawn"


def test_redrawn_value_follows_the_log_scale_of_its_range() -> None:
    """Half of the values drawn on a log scale are below the geometric mean."""
    distribution = FloatDistribution(1e-4, 1.0, log=True)
    drawn = [pbt._draw(distribution, random.Random(seed)) for seed in range(400)]
    assert sum(value < 1e-2 for value in drawn) == pytest.approx(200, abs=40)


def test_perturbation_changes_only_the_changeable_parameters() -> None:
    params = {"lr": 0.1, "dim": 8, "kind": "a"}
    distributions = {"lr": LR, "dim": IntDistribution(1, 64)}
    for seed in range(20):
        found = perturb(params, distributions, ["lr", "kind", "absent"], random.Random(seed))
        assert (found["dim"], found["kind"], set(found)) == (8, "a", set(params))
    assert params == {"lr": 0.1, "dim": 8, "kind": "a"}, "the donor's parameters must not change"


# Meetings


def searched(trial: OptunaTrial) -> dict[str, Any]:
    return {"lr": trial.suggest_float("lr", 0.01, 0.2), "dim": trial.suggest_int("dim", 1, 64)}


class Members:
    """A population with simulated members; a test passes the values that they report to ``reach``."""

    def __init__(
        self, folder: Path, size: int = 4, direction: Any = "min", space: Space = searched, **search: Any
    ) -> None:
        folder.mkdir(exist_ok=True)
        spec = sweep(epochs=EPOCHS, decide_at=RUNGS, trials=size, scheduler="pbt", **search)
        self.study = Population(
            folder,
            spec.model_copy(update={"plan": spec.plan.model_copy(update={"refit": False})}),
            [ERROR if direction == "min" else type(ERROR)("error", direction)],
            space,
            False,
            changeable=["lr"],
        )
        self.folder = folder

    def begin(self) -> Trial:
        return begin(self.study)

    def begin_all(self) -> list[Trial]:
        found = []
        while (trial := self.study.next()) is not None:
            found.append(trial)
        return found

    def checkpoints(self, number: int) -> Path:
        return self.folder / "trials" / f"{number:05d}"

    def reach(self, seed_run: int, epoch: int, value: float, best_epoch: int | None = None) -> str:
        """Train the member to ``epoch`` and save there. The weights record which member trained each epoch."""
        folder = self.checkpoints(seed_run)
        state = {"made_by": [*self.makers(seed_run)[: epoch - 1], seed_run], "weights": torch.tensor(float(seed_run))}
        checkpoint.write(folder / checkpoint.name(epoch), Checkpoint({"workload": "toy"}, epoch, state))
        checkpoint.keep(folder, pbt.MEMBER_CHECKPOINTS_KEPT)
        about = attributes(value, epoch, best_epoch or epoch)
        return self.study.report(seed_run, rows((epoch, value)), value, epoch == EPOCHS, about)

    def makers(self, number: int) -> list[int]:
        """For each epoch of the weights from which the member continues, the member that trained it."""
        found = checkpoint.latest(self.checkpoints(number))
        return list(checkpoint.read(found).state["made_by"]) if found else []


def test_no_member_continues_before_all_have_reached_the_rung(tmp_path: Path) -> None:
    members = Members(tmp_path)
    assert [trial.number for trial in members.begin_all()] == [0, 1, 2, 3]
    for seed_run in (2, 0, 3):
        assert members.reach(seed_run, 1, float(seed_run)) == "paused"
        assert members.begin_all() == []
        assert members.study.exhausted() is False
    assert members.study.met == 0
    members.reach(1, 1, 1.0)
    going_on = members.begin_all()
    assert [trial.number for trial in going_on] == [0, 1, 2, 3]
    assert members.study.met == 1


def test_members_are_trained_in_turn_with_fewer_slots_than_members(tmp_path: Path) -> None:
    members = Members(tmp_path)
    for number in range(4):
        assert members.begin().number == number
        members.reach(number, 1, float(number))
    for number in range(4):
        assert members.begin().number == number
        assert members.study.met == 1
        members.reach(number, 2, float(number))


@pytest.mark.parametrize(("direction", "loser", "donor"), [("min", 3, 0), ("max", 0, 3)])
def test_the_worst_takes_over_weights_and_parameters(direction: str, loser: int, donor: int, tmp_path: Path) -> None:
    members = Members(tmp_path, direction=direction)
    before = {trial.number: trial.params for trial in members.begin_all()}
    for seed_run in range(4):
        members.reach(seed_run, 1, float(seed_run))
    after = {trial.number: trial.params for trial in members.begin_all()}
    assert {n: members.makers(n) for n in range(4)} == {n: [n] for n in range(4)} | {loser: [donor]}
    assert {n for n in range(4) if after[n] != before[n]} == {loser}
    assert after[loser]["dim"] == before[donor]["dim"], "taken over unchanged"
    assert after[loser]["lr"] != before[loser]["lr"]
    trial = members.study.trials[loser]
    assert trial.user_attrs["lineage"] == [{"epoch": 1, "from": donor, "params": after[loser]}]
    assert trial.user_attrs["params"] == after[loser]
    assert members.study.first_params(loser) == before[loser]
    assert trial.params == before[loser], "the values of the sampler must not change"
    assert "lineage" not in members.study.trials[donor].user_attrs


def test_perturbation_ranges_are_those_of_the_member_that_drew_the_values(tmp_path: Path) -> None:
    """After two meetings this can be the donor's donor."""

    def space(trial: OptunaTrial) -> dict[str, Any]:
        low = 0.01 if trial.number else 1.0  # only member 0 has large values
        return {"lr": trial.suggest_float("lr", low, 2 * low), "dim": trial.number}

    members = Members(tmp_path, space=space)
    members.begin_all()
    for epoch, losers in ((1, [3]), (2, [3, 2])):
        values = {0: 0.1, 1: 0.3, 2: 0.4, 3: 0.5} if epoch == 1 else {0: 0.3, 1: 0.3, 2: 0.5, 3: 0.0}
        for seed_run, value in values.items():
            members.reach(seed_run, epoch, value)
        after = {trial.number: trial.params for trial in members.begin_all()}
        for loser in losers:
            assert after[loser]["dim"] == 0
            assert 1.0 <= after[loser]["lr"] <= 2.0


def test_a_parameter_that_the_space_derives_is_taken_over_unchanged(tmp_path: Path) -> None:
    """The study has the range of the suggested value, here an exponent, and not of the parameter."""

    def space(trial: OptunaTrial) -> dict[str, Any]:
        return {"lr": 10 ** trial.suggest_float("lr", -3, -1), "dim": trial.suggest_int("dim", 1, 64)}

    played = Members(tmp_path, space=space)
    first = {trial.number: trial.params for trial in played.begin_all()}
    for seed_run in range(4):
        played.reach(seed_run, 1, float(seed_run))
    assert {trial.number: trial.params for trial in played.begin_all()}[3] == first[0]


def test_a_member_ends_with_the_parameters_of_its_best_epoch(tmp_path: Path) -> None:
    """Member 3 takes over from member 0 twice and does not get better than member 0 was in epoch 2."""
    scores = {0: (0.5, 0.1, 0.3, 0.2, 0.2, 0.3), 1: (0.6,) * 6, 2: (0.7,) * 6, 3: (0.9, 0.9, 0.4, 0.4, 0.4, 0.4)}
    played = Members(tmp_path)
    first = {trial.number: trial.params for trial in played.begin_all()}
    for epoch in range(1, EPOCHS + 1):
        played.begin_all()
        for seed_run, values in scores.items():
            best = 2 if epoch >= 2 and seed_run in (0, 3) else 1
            played.reach(seed_run, epoch, values[epoch - 1], best)
    trial = played.study.trials[3]
    assert [(step["epoch"], step["from"]) for step in trial.user_attrs["lineage"]][:2] == [(1, 0), (2, 0)]
    assert trial.user_attrs["params"] == first[0], "those of epoch 2, which member 0 trained"
    training = members.parts(played.study.trials, 3)
    assert [(part.trial, part.first) for part in training] == [(3, 3), (0, 0)]
    assert training[0].params != first[0]
    (row,) = [
        row for row in trials.rows(members.with_present_params(played.study.trials), [ERROR], 1) if row["trial"] == 3
    ]
    assert {name: row[f"params.{name}"] for name in first[0]} == first[0]


def test_member_in_a_conditional_space_has_the_parameter_names_of_its_donor(tmp_path: Path) -> None:
    """In a conditional space these names differ from those that were drawn for the member."""

    def space(trial: OptunaTrial) -> dict[str, Any]:
        drawn = {"lr": trial.suggest_float("lr", 0.01, 0.2)}
        return drawn | {
            "dim" if trial.number else "layers": trial.suggest_int("dim" if trial.number else "layers", 1, 9)
        }

    played = Members(tmp_path, space=space)
    played.begin_all()
    for seed_run in range(4):
        played.reach(seed_run, 1, float(seed_run))
    lr = {trial.number: trial.params["lr"] for trial in played.begin_all()}
    present = members.with_present_params(played.study.trials)
    assert present[3].params == {"lr": lr[3], "layers": present[0].params["layers"]}
    assert present[3].distributions == present[0].distributions
    assert "dim" in played.study.trials[3].params, "the study must not change"
    assert present[:3] == played.study.trials[:3]


def test_member_that_reports_a_passed_rung_again_is_not_paused(tmp_path: Path) -> None:
    """A member continues from the checkpoint of the meeting and reports its rows again."""
    members = Members(tmp_path)
    members.begin_all()
    for seed_run in range(4):
        members.reach(seed_run, 1, float(seed_run))
    members.begin_all()
    restated = members.study.report(3, rows((1, 0.0)), 0.0, False, attributes(0.0, 1))
    assert restated == "go on"
    assert members.study.trials[3].intermediate_values == {1: 3.0}, "the member's own value, not the donor's"
    assert members.reach(3, 2, 0.5) == "paused"


def test_members_that_failed_are_not_waited_for(tmp_path: Path) -> None:
    members = Members(tmp_path)
    members.begin_all()
    members.study.fail(0, "train/loss is nan at epoch 1")
    for seed_run in (1, 2, 3):
        members.reach(seed_run, 1, float(seed_run))
    assert [trial.number for trial in members.begin_all()] == [1, 2, 3]
    assert members.makers(3) == [1]
    for seed_run in (2, 3):
        members.study.fail(seed_run, "killed")
    members.reach(1, 2, 0.5)
    assert [trial.number for trial in members.begin_all()] == [1], "the only member has no donor"
    assert not members.study.exhausted()


def test_damaged_checkpoint_of_a_donor_raises_user_error(tmp_path: Path) -> None:
    members = Members(tmp_path)
    members.begin_all()
    for seed_run in range(4):
        members.reach(seed_run, 1, float(seed_run))
    (members.checkpoints(0) / checkpoint.name(1) / checkpoint.TENSORS).write_bytes(b"damaged")
    with pytest.raises(UserError):
        members.begin()


def test_full_disk_while_a_checkpoint_is_taken_over_raises_user_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = Members(tmp_path)
    members.begin_all()
    for seed_run in range(4):
        members.reach(seed_run, 1, float(seed_run))

    def full(*of: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pbt.shutil, "copytree", full)
    refused(members.begin, "cannot be written: got No space left on device", code=UNAVAILABLE)


def test_waiting_and_training_members_can_be_discarded(tmp_path: Path) -> None:
    members = Members(tmp_path)
    members.begin_all()
    for seed_run in (0, 1):
        members.reach(seed_run, 1, float(seed_run))
    assert members.study.unfinished() == [0, 1, 2, 3]
    for seed_run in range(4):
        members.study.discard(seed_run, "the device-hour budget was spent")
    assert states(members.study) == ["FAIL"] * 4
    assert members.study.exhausted()


def test_begun_members_continue_when_no_new_members_are_allowed(tmp_path: Path) -> None:
    members = Members(tmp_path, size=6)
    for seed_run in range(4):
        members.begin()
        members.reach(seed_run, 1, float(seed_run))
    going_on = members.study.next(fresh=False)
    assert going_on is not None
    assert members.study.met == 1


# A whole population


def play(
    folder: Path, dies: Callable[[str, int, int], bool] = lambda *place: False, slots: int = 4, seed: int = 5
) -> dict[str, Any]:
    """Run a population to its end. ``dies(place, unit, epoch)`` returns whether the process is killed at this point.

    A member's score depends only on its parameters and weights. A kill loses everything that is not in the journal and
    the checkpoints, including the epochs since a member's last checkpoint.
    """
    members, slot = Members(folder, seed=seed), list[Trial]()

    def restart() -> None:
        nonlocal members
        members, slot[:] = Members(folder, seed=seed), []

    for _ in range(1000):
        while len(slot) < slots and (trial := members.study.next()) is not None:
            slot.append(trial)
            if dies("begun", trial.seed_run, members.study.met):
                restart()
        if not slot:
            break
        trial = slot.pop(random.Random(len(slot)).randrange(len(slot)))
        found = checkpoint.latest(members.checkpoints(trial.seed_run))
        epoch = 1 + (checkpoint.read(found).epoch if found else 0)
        if dies("training", trial.seed_run, epoch):
            restart()
            continue
        if epoch > EPOCHS:  # the member had ended before its end was reported
            epoch = EPOCHS
        made = sum(7.0 ** -(k + 1) * maker for k, maker in enumerate(members.makers(trial.seed_run)))
        value = abs(trial.params["lr"] - 0.05) / epoch + trial.params["dim"] / 1e4 + made / 10
        members.reach(trial.seed_run, epoch, value)
        if dies("told", trial.seed_run, epoch):
            restart()
    told = {
        trial.number: (trial.values, trial.user_attrs["params"], trial.user_attrs.get("lineage"))
        for trial in members.study.trials
    }
    assert states(members.study) == ["COMPLETE"] * 4
    return {"told": told, "makers": {number: members.makers(number) for number in range(4)}}


def once(place: str, epoch: int, seed_run: int = 1) -> Callable[[str, int, int], bool]:
    left = [True]

    def dies(where: str, who: int, when: int) -> bool:
        if (where, who, when) == (place, seed_run, epoch) and left[0]:
            left[0] = False
            return True
        return False

    return dies


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """The outcome without kills."""
    return play(tmp_path_factory.mktemp("population") / "whole")


def test_lineages_are_ordered_and_end_with_the_present_parameters(whole: Mapping[str, Any]) -> None:
    lineages = [lineage for _, _, lineage in whole["told"].values() if lineage]
    assert lineages
    for lineage in lineages:
        assert [step["epoch"] for step in lineage] == sorted({step["epoch"] for step in lineage})
    assert all(not lineage or lineage[-1]["params"] == params for _, params, lineage in whole["told"].values())
    assert any(len(set(makers)) > 1 for makers in whole["makers"].values())


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_population_is_the_same_on_any_number_of_slots(slots: int, whole: Mapping[str, Any], tmp_path: Path) -> None:
    assert play(tmp_path / "again", slots=slots) == whole


def test_population_differs_with_another_seed(whole: Mapping[str, Any], tmp_path: Path) -> None:
    assert play(tmp_path / "other", seed=6) != whole


@pytest.mark.parametrize("place", ["begun", "training", "told"])
@pytest.mark.parametrize("epoch", [1, 2, 5])
def test_population_is_the_same_after_the_process_dies(
    place: str, epoch: int, whole: Mapping[str, Any], tmp_path: Path
) -> None:
    dies = once(place, epoch)
    assert play(tmp_path / "torn", dies) == whole
    assert not dies(place, 1, epoch), "the process was not killed"


@pytest.mark.parametrize("written", ["nothing", "weights", "lineage", "parameters"])
def test_population_is_the_same_after_a_kill_during_a_takeover(
    written: str, whole: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill is in the first takeover: before the checkpoint is complete, after it, or between two attributes."""
    import optuna

    class Killed(BaseException):
        pass

    armed = [True]

    def shot(when: bool) -> None:
        if when and armed[0]:
            armed[0] = False
            raise Killed

    rename, set_attribute = Path.rename, optuna.Trial.set_user_attr

    def renaming(path: Path, target: Path) -> Path:
        shot(written == "nothing" and path.name.endswith(".taken.partial"))
        return rename(path, target)

    def setting(trial: optuna.Trial, key: str, value: Any) -> None:
        shot(written == "weights" and key == "began_with")
        set_attribute(trial, key, value)
        shot(written == "lineage" and key == "lineage")
        shot(written == "parameters" and key == "params" and "lineage" in trial.user_attrs)

    monkeypatch.setattr(Path, "rename", renaming)
    monkeypatch.setattr(optuna.Trial, "set_user_attr", setting)
    folder = tmp_path / "torn"
    with pytest.raises(Killed):
        play(folder)
    assert play(folder) == whole


def test_pbt_rungs_are_a_tenth_of_the_epochs_or_one_epoch_apart() -> None:
    assert rungs(100, "pbt") == tuple(range(10, 100, 10))
    assert rungs(EPOCHS, "pbt") == RUNGS
