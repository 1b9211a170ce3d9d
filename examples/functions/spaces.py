"""The search space of the three examples: orchestrator sweep ... --space examples/functions/spaces.py:lr"""


def lr(trial):
    return {"lr": trial.suggest_float("lr", 1e-3, 0.3, log=True)}
