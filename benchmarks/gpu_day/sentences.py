"""The bi-encoder and sentence-transformers with the same BERT-base from scratch, both from texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import torch

from benchmarks.gpu_day.inputs import ENCODER, sentences
from benchmarks.gpu_day.measures import build, median_seconds
from benchmarks.gpu_day.session import Result, Row, Session

MAX_LENGTH = 64
ENCODED_AT_ONCE = 256
"""Sentences that sentence-transformers encodes at once; its default of 32 leaves a GPU idle."""


def encode(row: Row, session: Session) -> Iterator[Result]:
    """Sentences a second, tokenisation included."""
    texts = sentences(row.options["sentences"])
    own = row.options["system"] == "ours"
    seconds = median_seconds((_ours if own else _theirs)(row, session, texts), session.rounds)
    yield {"sentences_per_second": len(texts) / seconds}


def _ours(row: Row, session: Session, texts: list[str]) -> Callable[[], object]:
    from workloads.encoders.text import encode, load_encoder

    folder = session.inputs.encoder
    tokenizer, encoder = load_encoder(folder, max_length=MAX_LENGTH, precision=row.runtime["precision"])
    encoder.to(session.device)
    return lambda: encode(encoder, tokenizer(texts))


def _theirs(row: Row, session: Session, texts: list[str]) -> Callable[[], object]:
    model = _sentence_transformer(session)

    def run() -> object:
        with _autocast(row, session):
            return model.encode(texts, batch_size=ENCODED_AT_ONCE, convert_to_tensor=True, show_progress_bar=False)

    return run


def train(row: Row, session: Session) -> Iterator[Result]:
    """A training step on pairs with scores, by the squared error of the cosine, tokenisation of its texts included.

    Both take the same pairs, AdamW and a clipped gradient; batches follow one another.
    """
    own = row.options["system"] == "ours"
    steps = row.runtime["steps_per_epoch"]
    seconds = median_seconds((_our_steps if own else _their_steps)(row, session), session.rounds) / steps
    yield {"step_ms": seconds * 1e3, "pairs_per_second": row.params["batch_size"] / seconds}


def _our_steps(row: Row, session: Session) -> Callable[[], object]:
    """An epoch. The workload tokenises its texts once for all epochs; here those of the epoch are tokenised again."""
    built = build(row, session)
    first, second, _ = _pairs(row, session)
    epochs = count(1)

    def run() -> None:
        built.tokenizer(first + second)
        built.train_epoch(next(epochs))

    return run


def _their_steps(row: Row, session: Session) -> Callable[[], object]:
    from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss

    model = _sentence_transformer(session).train()
    loss = CosineSimilarityLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01, fused=True)
    first, second, scores = _pairs(row, session)
    labels = torch.tensor(scores, device=session.device)
    size = row.params["batch_size"]

    def run() -> None:
        for start in range(0, len(labels), size):
            batch = slice(start, start + size)
            features = [_to_device(model.preprocess(texts[batch]), session.device) for texts in (first, second)]
            with _autocast(row, session):
                value = loss(features, labels[batch])
            value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return run


def _pairs(row: Row, session: Session) -> tuple[list[str], list[str], list[float]]:
    """Texts and scores from 0 to 1 of as many pairs as an epoch takes."""
    from workloads.data.pairs.load import load_pairs

    train = load_pairs(row.params["dataset"], session.inputs.data).train
    count = row.params["batch_size"] * row.runtime["steps_per_epoch"]
    rows = [number % len(train.first) for number in range(count)]
    scores = [float(train.scores[number]) / 5 for number in rows]
    return [train.first[number] for number in rows], [train.second[number] for number in rows], scores


def _sentence_transformer(session: Session) -> Any:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(session.inputs.encoder, device=str(session.device))  # with mean pooling
    model.max_seq_length = MAX_LENGTH
    return model


def _to_device(features: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in features.items()}


def _autocast(row: Row, session: Session) -> torch.autocast:
    return torch.autocast(session.device.type, torch.bfloat16, enabled=row.runtime["precision"] == "bf16")


def params(batch_size: int) -> dict[str, Any]:
    """Parameters of the bi-encoder that trains next to sentence-transformers."""
    return {"dataset": "synthetic-pairs", "encoder": ENCODER, "max_length": MAX_LENGTH, "batch_size": batch_size}
