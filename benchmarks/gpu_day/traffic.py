"""Bytes that a training step of the recommender moves, counted by hand: what its share of the bandwidth is of."""

from __future__ import annotations

from typing import Any

FLOAT = 4


def step_bytes(built: Any) -> float:
    """Bytes read and written in a step of a :class:`~workloads.recommender.workload.Recommender`; 0 for others.

    With N nodes, d dimensions, batches of B and w nodes an interaction (user, items), all in float32:

    - gathers, 4 w B d: the rows are read from the table and written, read for the scores and again for their gradient;
    - gradient, 4 w B d + N d: that of the rows is written and read, the table's is zeroed, and its rows are read and
      written;
    - Adam, 7 N d: parameter, gradient and both moments are read; parameter and moments are written.

    LightGCN adds :func:`propagation_bytes` forward and backward. Draws, scores and losses, of B numbers, are left out.
    A gather that the cache serves moves less: a share can be above 1.
    """
    if type(built).__name__ != "Recommender":
        return 0.0
    n_nodes, dim = built.model.embedding.shape
    rows = built.draws.width * built.params.batch_size * dim
    total = FLOAT * (8 * rows + 8 * n_nodes * dim)
    if built.params.backbone == "lightgcn":
        size = built.model.dtype.itemsize
        total += 2 * propagation_bytes(n_nodes, dim, len(built.model.graph.indices), built.model.layers, size)
    return float(total)


def propagation_bytes(n_nodes: int, dim: int, edges: int, layers: int, size: int) -> int:
    """Bytes of ``propagate``, whose layers are of ``size`` bytes a number.

    E^(0) is copied, and the sum divided: two reads and two writes. A layer reads an embedding, an index and a weight
    for each entry of the matrix, writes its embeddings, and adds them to the sum (two reads and a write). Below
    float32, E^(0) is converted once, and the weights in each layer.
    """
    table = n_nodes * dim
    conversion = FLOAT + size if size < FLOAT else 0
    layer = edges * (size * dim + 4 + size + conversion) + (2 * size + 2 * FLOAT) * table
    return 4 * FLOAT * table + conversion * table + layers * layer
