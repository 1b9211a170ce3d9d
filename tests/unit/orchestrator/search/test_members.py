"""The training that led to a member's weights, from the lineages of a population."""

from __future__ import annotations

from typing import Any

from optuna.trial import FrozenTrial, TrialState, create_trial

from orchestrator.search import members


def member(lr: float, *lineage: tuple[int, int, float], best_epoch: int | None = None) -> FrozenTrial:
    """A member that starts with ``lr`` and takes over as in ``lineage``: epoch, donor, and lr afterwards."""
    steps = [{"epoch": epoch, "from": donor, "params": {"lr": later}} for epoch, donor, later in lineage]
    about: dict[str, Any] = {"params": steps[-1]["params"] if steps else {"lr": lr}}
    if steps:
        about |= {"lineage": steps, "began_with": {"lr": lr}}
    if best_epoch is None:
        return create_trial(state=TrialState.RUNNING, user_attrs=about)
    return create_trial(value=0.0, user_attrs=about | {"best_epoch": best_epoch})


def test_training_of_a_member_is_traced_through_its_donors() -> None:
    """Member 2 takes over from 1 at epoch 6, which took over from 0 at epoch 4. Later takeovers of 1 do not count."""
    population = [
        member(0.1, (8, 2, 0.9)),
        member(0.2, (4, 0, 0.5), (8, 2, 0.8)),
        member(0.3, (2, 0, 0.4), (6, 1, 0.6)),
    ]
    training = members.parts(population, 2)
    assert [(part.trial, part.first, part.params["lr"]) for part in training] == [(2, 7, 0.6), (1, 5, 0.5), (0, 0, 0.1)]
    assert [members.at(training, epoch).trial for epoch in (0, 4, 5, 6, 7, 20)] == [0, 0, 1, 1, 2, 2]
    assert members.parts([member(0.1)], 0) == [members.Part(0, 0, {"lr": 0.1})]


def test_present_parameters_of_a_member_follow_its_lineage() -> None:
    population = [member(0.1), member(0.2, (4, 0, 0.5), best_epoch=4), member(0.3, (4, 0, 0.5))]
    for number, trial in enumerate(population):
        trial.number = number
        trial.params = {"lr": members.parts(population, number)[-1].params["lr"]}
    present = members.with_present_params(population)
    assert [trial.params["lr"] for trial in present] == [0.1, 0.1, 0.5], "an ended member has the lr of its best epoch"
    assert present[0] is population[0]
