"""Generated questions over a graph with known answer probabilities, to measure calibration.

A question names a topic, a relation and a certainty. With the probability that its first word stands for, the answer is
the topic's triple with that relation; otherwise it is another random triple of the topic. The best ranking puts the
named triple first, and is then right with exactly that probability.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from workloads.data.draws import below
from workloads.data.questions.knowledge_graph import numbered
from workloads.data.questions.types import KIND, PARTS, GraphQuestions, Question
from workloads.data.source import Dataset

SURE = {"surely": 0.95, "probably": 0.75, "maybe": 0.5, "hardly": 0.3}
"""The first words, and the probability of the named triple."""


@dataclass(frozen=True, slots=True)
class Planted:
    """Parameters of the generator.

    Each of ``topics`` has a triple with each of ``relations``, to one of ``objects``, and a question for each of
    :data:`SURE`. Of every ``of`` topics in a row the last but one is in dev and the last in test.
    """

    topics: int = 300
    relations: int = 6
    objects: int = 40
    of: int = 5
    seed: int = 20


def generate(planted: Planted) -> GraphQuestions:
    """Draw graph and questions. All draws come from the raw stream of PCG64: the same on every machine."""
    import numpy as np

    bits = np.random.PCG64(planted.seed)
    graph: list[tuple[str, str, str]] = []
    questions: list[Question] = []
    odds: list[tuple[int, int, float]] = []
    for topic in range(planted.topics):
        own = [
            (f"topic{topic}", f"rel{relation}", f"object{below(bits, planted.objects)}")
            for relation in range(planted.relations)
        ]
        for word, probability in SURE.items():
            named = below(bits, planted.relations)
            others = [relation for relation in range(planted.relations) if relation != named]
            is_named = below(bits, 10**6) < probability * 10**6
            answer = named if is_named else others[below(bits, len(others))]
            part = PARTS[max(0, topic % planted.of - planted.of + 3)]
            text = f"{word} rel{named}"
            questions.append(
                Question(f"q{len(questions)}", text, "planted", 1, f"topic{topic}", (own[answer],), part, word)
            )
            for relation in range(planted.relations):
                p = probability if relation == named else (1 - probability) / len(others)
                odds.append((len(questions) - 1, len(graph) + relation, p))
        graph += own
    data = numbered(questions, {"planted": graph})
    rows = np.array([row[:2] for row in odds], np.int64)
    return replace(data, odds=(rows, np.array([row[2] for row in odds])))


_DEFAULT = Planted()

SYNTHETIC_QUESTIONS = Dataset(
    name="synthetic-questions",
    summary="questions of a planted probability of success over a graph, 1,200 questions, 1,800 triples",
    kind=KIND,
    version=f"1 {_DEFAULT}",
    reader=lambda _folder: generate(_DEFAULT),
)
