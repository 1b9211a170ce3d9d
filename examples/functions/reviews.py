"""A Hugging Face Trainer: orchestrator run examples/functions/reviews.py:trainer epochs=5 objective=accuracy:max"""

from dataclasses import dataclass

import pandas as pd
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


@dataclass
class Params:
    lr: float = 1e-3


def sentences(seed, size=64):  # eight words each; the label says whether word 5 is one of them
    words = torch.randint(1, 12, (size, 8), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": row, "labels": int((row == 5).any())} for row in words]


def accuracy(result):
    return {"accuracy": float((result.predictions.argmax(1) == result.label_ids).mean())}


def classifier():
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return BertForSequenceClassification(BertConfig(vocab_size=12, **size))


def trainer(params: Params, ctx) -> Trainer:
    arguments = TrainingArguments(ctx.folder, learning_rate=params.lr, use_cpu=True)
    held = {"validation": sentences(1), "test": sentences(2)}
    return Trainer(classifier(), arguments, train_dataset=sentences(0), eval_dataset=held, compute_metrics=accuracy)


class Predictor:
    example = {"words": [[1, 2, 5], [3, 4, 6]]}

    def __init__(self, weights, config):
        self.model = classifier().eval()
        self.model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})

    def predict(self, inputs):
        scores = self.model(torch.tensor(inputs["words"].tolist())).logits.softmax(1)
        return pd.DataFrame({"score": scores[:, 1].tolist()})
