"""Linear regression as one function: orchestrator run examples/functions/linreg.py:train epochs=20 lr=0.1 --local"""

import pandas as pd
import torch
from pydantic import BaseModel

OBJECTIVE = "mse:min"


class Params(BaseModel):
    lr: float = 0.05


def errors(model, split):  # squared errors on points that are the same in every run
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(len(split)))
    return (model(x)[:, 0] - x @ torch.tensor([2.0, -1.0, 0.5])) ** 2


def train(params: Params, ctx):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), params.lr)
    ctx.load(model=model, optimizer=optimizer)
    parts = ["train"] if ctx.holdout else ["train", "validation"]  # a refit trains on both

    @ctx.evaluate
    def evaluate(split):
        values = errors(model, split)
        return {"mse": values.mean()}, {"id": range(len(values)), "mse": values}

    for _ in ctx.epochs:
        optimizer.zero_grad()
        loss = torch.cat([errors(model, part) for part in parts]).mean()
        loss.backward()
        optimizer.step()
        yield {"loss": loss}, {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


class Predictor:
    example = {"x1": [0.0, 1.0], "x2": [1.0, 0.0], "x3": [0.5, 0.5]}

    def __init__(self, weights, config):
        self.weights = weights

    def predict(self, inputs):
        return pd.DataFrame({"y": inputs.to_numpy() @ self.weights["weight"][0] + self.weights["bias"]})
