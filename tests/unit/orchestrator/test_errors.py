"""Error messages: problem, value, allowed values and fix in one line, also after pickling."""

from __future__ import annotations

import pickle

import pytest
from pydantic import BaseModel, ValidationError

from orchestrator import errors
from orchestrator.config.objectives import Unreported
from orchestrator.errors import Interrupted, RunFailed, UserError, nearest, one_line, unknown


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UserError("It is wrong"), "It is wrong."),
        (UserError("It is wrong."), "It is wrong."),
        (UserError("It is wrong", got=3), "It is wrong: got 3."),
        (UserError("It is wrong", got=0, allowed=[1, 2]), "It is wrong: got 0; allowed: 1, 2."),
        (UserError("It is wrong", allowed="one to nine"), "It is wrong; allowed: one to nine."),
        (UserError("It is wrong", allowed=3), "It is wrong; allowed: 3."),
        (UserError("It is wrong", fix="Mend it"), "It is wrong. Mend it."),
        (UserError("It is wrong", got="x", fix="Mend it."), "It is wrong: got x. Mend it."),
        (UserError("It is wrong", fix="Did you mean 'a'?"), "It is wrong. Did you mean 'a'?"),
    ],
)
def test_user_error_text_has_problem_value_allowed_values_and_fix(error: UserError, text: str) -> None:
    assert str(error) == text


def test_exit_codes_have_fixed_values() -> None:
    codes = (errors.DONE, errors.FAILED, errors.USAGE, errors.UNAVAILABLE, errors.PARTIAL, errors.REFUSED)
    assert codes == (0, 1, 2, 3, 4, 5)
    assert errors.INTERRUPTED == 130
    assert (UserError("x").code, RunFailed("t", "c").code, Interrupted("r").code) == (2, 1, 130)


def test_errors_keep_their_fields_when_pickled() -> None:
    error = UserError("It is wrong", got=1, allowed=["a"], fix="Mend it", code=errors.UNAVAILABLE)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.code, copy.got, copy.allowed, copy.fix) == (str(error), 3, 1, ["a"], "Mend it")
    refused = pickle.loads(pickle.dumps(unknown("objective", "a", ["b"], Unreported)))
    assert (type(refused), str(refused)) == (Unreported, "Unknown objective: got 'a'; allowed: b.")
    failed = pickle.loads(pickle.dumps(RunFailed("trial 3", "train/loss is nan at epoch 2", "log.txt")))
    assert str(failed) == "trial 3 failed: train/loss is nan at epoch 2 (log: log.txt)"
    assert (failed.trial, failed.log) == ("trial 3", "log.txt")
    interrupted = Interrupted("orchestrator run --resume a")
    copy = pickle.loads(pickle.dumps(interrupted))
    assert (str(copy), copy.resume) == (str(interrupted), "orchestrator run --resume a")


@pytest.mark.parametrize(
    ("name", "expected"), [("recomender", "recommender"), ("simcrl", "simclr"), ("zzz", None), ("", None)]
)
def test_nearest_returns_the_closest_name_or_none(name: str, expected: str | None) -> None:
    assert nearest(name, ["recommender", "simclr", "vera"]) == expected


def test_unknown_name_error_lists_known_names_and_the_nearest() -> None:
    error = unknown("dataset", "ml100k", ["synthetic", "ml-100k"])
    assert str(error) == "Unknown dataset: got 'ml100k'; allowed: ml-100k, synthetic. Did you mean 'ml-100k'?"
    assert str(unknown("dataset", "zzz", ["b", "a"])) == "Unknown dataset: got 'zzz'; allowed: a, b."


def test_error_lists_only_the_nearest_of_many_names_if_there_is_one() -> None:
    names = ["epochs", *(f"name_{number:02}" for number in range(40))]
    assert str(unknown("parameter", "epoch", names)) == "Unknown parameter: got 'epoch'. Did you mean 'epochs'?"
    error = unknown("parameter", "epoch", names, listed_by="orchestrator workloads toy")
    assert str(error) == ("Unknown parameter: got 'epoch'. Did you mean 'epochs'? All: orchestrator workloads toy.")
    error = unknown("parameter", "zzz", names, listed_by="orchestrator workloads toy")
    assert str(error) == f"Unknown parameter: got 'zzz'; allowed: {', '.join(names)}."


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("it is wrong"), "it is wrong"),
        (ValueError("\n  CUDA error: device-side assert triggered\nCompile with ..."),
         "CUDA error: device-side assert triggered"),
        (ValueError(), "no message"),
        (KeyError("name"), "'name'"),
    ],
)  # fmt: skip
def test_any_error_is_one_line(error: Exception, text: str) -> None:
    assert one_line(error) == text


def test_an_error_whose_text_cannot_be_made_is_one_line() -> None:
    class Textless(Exception):
        def __str__(self) -> str:
            raise AttributeError("code")

    assert one_line(Textless()) == "no message, its __str__ raises AttributeError"


def test_one_line_includes_all_errors_of_a_failed_validation() -> None:
    class Model(BaseModel):
        lr: float
        dim: int

    with pytest.raises(ValidationError) as caught:
        Model.model_validate({"lr": "fast"})
    said = one_line(caught.value)
    assert said.startswith("lr: Input should be a valid number")
    assert said.endswith("; dim: Field required")
