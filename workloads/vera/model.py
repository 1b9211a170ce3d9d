"""The retrieval backbone over text and graph features, with a ranking head and an evidential head. Note 2 and 5."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from workloads.encoders.text import TextEncoder
from workloads.losses.evidential import beta_parameters, log1mexp
from workloads.seeding import derive
from workloads.vera.dataset import CandidateBlock, VeraData
from workloads.vera.params import Params
from workloads.vera.predictor import grown

START_A, START_B = -4.0, 1.0
"""Initial biases of the evidential head's two outputs: few candidates are relevant (E-V8)."""

MAX_GAP = 20.0
"""Differences between scores are clipped to this in the input of the evidential head."""

GAP_UNIT = 4.0
"""Differences between scores are divided by this in the input of the evidential head."""

CONTEXT_SCALE = 0.03
"""Factor on z if the evidential head also sees the context. A few hundred queries are enough to learn how far a lead in
score can be trusted, but not what each of many dimensions of z means."""

LINEAR_FROM = 9.0
"""Where VERA's outputs a and b change from exponential to linear: ``e^9`` is a μ within .0003 of 1."""


class HeadInputs(NamedTuple):
    """Inputs of the heads for P candidates: z (P, h), and the features, plain and standardised per query, (P, G)."""

    z: torch.Tensor
    standing: torch.Tensor


class Evidence(NamedTuple):
    """Parameters α and β of a Beta distribution for each candidate, (B, C); 1 for padding."""

    alpha: torch.Tensor
    beta: torch.Tensor


class Outputs(NamedTuple):
    """Scores (B, C), -inf for padding, and the evidence that L_cand and L_query are computed from.

    ``anchor`` is 0 and depends on every parameter. Adding it to the loss gives every parameter a gradient in every
    stage, as DistributedDataParallel requires.
    """

    scores: torch.Tensor
    cand: Evidence
    query: Evidence
    anchor: torch.Tensor


class Messages(nn.Module):
    """A layer of message passing between triples of a question's neighbourhood that share an entity (E-V14).

    An entity's vector is the mean of those of the triples that it is in; a triple adds what its subject and its object
    say: ``c + GELU(S e_subject + O e_object)``.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.subject = nn.Linear(hidden, hidden)
        self.target = nn.Linear(hidden, hidden, bias=False)

    def forward(self, candidate: torch.Tensor, block: CandidateBlock) -> torch.Tensor:
        """Vectors of all candidates, (P, h) to (P, h)."""
        assert block.nodes is not None
        both = block.nodes.flatten()
        sums = candidate.new_zeros(block.node_count, candidate.shape[1]).index_add(0, both, candidate.repeat(2, 1))
        degree = candidate.new_zeros(block.node_count).index_add(0, both, candidate.new_ones(len(both)))
        subject, target = (sums / degree.unsqueeze(1))[block.nodes]
        return candidate + functional.gelu(self.subject(subject) + self.target(target))


class Backbone(nn.Module):
    """``z = f(x)``: a vector for each candidate, from its text, its features and their interaction with the query."""

    mean: torch.Tensor
    deviation: torch.Tensor

    def __init__(self, dim: int, categories: int, numbers: int, params: Params) -> None:
        super().__init__()
        hidden = params.hidden
        self.query = nn.Linear(dim, hidden)
        self.text = nn.Linear(dim, hidden)
        self.category = nn.Embedding(categories, hidden, padding_idx=0)
        self.standing = 2 * (numbers + 1)
        self.number = nn.Linear(self.standing, hidden, bias=False)
        self.match = nn.Linear(hidden, hidden)
        self.own = nn.Linear(hidden, hidden, bias=False)
        self.asked = nn.Linear(hidden, hidden, bias=False)
        self.norm = nn.LayerNorm(hidden, bias=False)
        self.layers = nn.ModuleList(Messages(hidden) for _ in range(params.graph_layers))
        self.dropout = nn.Dropout(params.dropout)
        self.register_buffer("mean", torch.zeros(numbers))
        self.register_buffer("deviation", torch.ones(numbers))
        self.encoder: TextEncoder | None = None
        """The text encoder, if it is trained."""

    def forward(self, data: VeraData, block: CandidateBlock) -> HeadInputs:
        """z of each candidate. The unit vectors of the texts are scaled so that their entries are about one.

        An encoder that is trained computes them while there are gradients; else ``data`` has those of its last state.
        """
        queries, texts = data.vectors(block, self.encoder if torch.is_grad_enabled() else None)
        cosine = (queries @ texts.T)[block.row, block.text_row]
        scale = queries.shape[1] ** 0.5
        query = self.query(queries * scale)
        text = self.text(texts * scale)
        numbers = (data.numbers[block.pool_row] - self.mean) / self.deviation
        numbers = torch.cat([numbers, cosine.unsqueeze(1)], 1)
        standing = torch.cat([numbers, self._among(numbers, block)], 1)
        rows = torch.cat([block.text_row.unsqueeze(1), data.codes[block.pool_row] + len(text)], 1)
        table = torch.cat([text, self.category.weight])
        embedded = functional.embedding_bag(rows, table, mode="sum", padding_idx=len(text))
        candidate = torch.addmm(embedded, standing, self.number.weight.T)
        for layer in self.layers:
            candidate = layer(candidate, block)
        interact = self.interact_by_query if candidate.device.type == "cpu" else self.interact
        return HeadInputs(self.dropout(self.norm(functional.gelu(interact(query, candidate, block)))), standing)

    def interact(self, query: torch.Tensor, candidate: torch.Tensor, block: CandidateBlock) -> torch.Tensor:
        """``M (q ⊙ c) + O c + A q`` for each candidate c (P, h) and its query q (B, h), (P, h)."""
        own = self.own(candidate)
        query_part = self.asked(query)
        interacted: torch.Tensor = self.match(query[block.row] * candidate) + own + query_part[block.row]
        return interacted

    def interact_by_query(self, query: torch.Tensor, candidate: torch.Tensor, block: CandidateBlock) -> torch.Tensor:
        """The same as ``(M diag(q) + O) c + A q``: half the arithmetic, with one matrix and one call per query."""
        weights = self.match.weight * query.unsqueeze(1) + self.own.weight
        biases = self.asked(query) + self.match.bias
        parts = zip(biases, torch.split(candidate, block.lengths), weights)
        return torch.cat([torch.addmm(bias, part, weight.T) for bias, part, weight in parts])

    @torch.no_grad()
    def scale_to(self, numbers: torch.Tensor) -> None:
        """Set mean and deviation of the features to those of the training candidates, (n, F)."""
        if len(numbers) > 1:
            self.mean.copy_(numbers.mean(0))
            self.deviation.copy_(numbers.std(0).clamp(min=1e-3))

    @staticmethod
    def _among(numbers: torch.Tensor, block: CandidateBlock) -> torch.Tensor:
        """Features standardised over the candidates of each query, (P, F)."""
        count = block.listed.sum(1, keepdim=True).clamp(min=1)
        zeros = numbers.new_zeros(len(block.queries), numbers.shape[1])
        centred = numbers - (zeros.index_add(0, block.row, numbers) / count)[block.row]
        variance = zeros.index_add(0, block.row, centred.square()) / count
        # The root of 0, of a query with one candidate, would have a gradient of NaN.
        return centred / torch.where(variance > 1e-12, variance, 1).sqrt()[block.row]


class Retriever(nn.Module):
    """The backbone, the ranking head and the evidential head. A baseline uses one of the heads."""

    def __init__(self, data: VeraData, params: Params, seed: int) -> None:
        """Build on the CPU. The weights depend on the seed only."""
        super().__init__()
        self.params = params
        pool = data.pool
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(derive(seed, "init"))
            self.backbone = Backbone(data.queries.shape[1], len(pool.categories), len(pool.number_names), params)
            # No bias: the softmax over candidates is invariant to it.
            self.ranking = nn.Linear(params.hidden, 1, bias=False)
            last = nn.Linear(params.hidden, 2)
            context = 5 + self.backbone.standing if params.evidence_context else 0
            self.evidence = nn.Sequential(nn.Linear(params.hidden + context, params.hidden), nn.GELU(), last)
        if params.encoder_lr is not None:
            self.backbone.encoder = copy.deepcopy(data.encoder).requires_grad_()
        last.bias.data = torch.tensor([START_A, START_B])

    def forward(
        self,
        data: VeraData,
        block: CandidateBlock,
        with_backbone: bool = True,
        with_evidence: bool = True,
        cached: HeadInputs | None = None,
    ) -> Outputs:
        """Score all candidates of a block.

        Args:
            data: the data of the block.
            block: B queries.
            with_backbone: if False, no gradient reaches the backbone and the ranking head.
            with_evidence: if False, the evidence is 1, for losses that do not use it.
            cached: inputs of the heads for the block's candidates, if a frozen backbone has computed them already.
        """
        params = self.params
        with torch.set_grad_enabled(torch.is_grad_enabled() and with_backbone):
            z, standing = self.backbone(data, block) if cached is None else cached
            scores = block.spread(self.ranking(z).squeeze(1), -torch.inf)
        anchor = torch.stack([parameter.sum() * 0 for parameter in self.parameters()]).sum()
        if params.method == "softmax" or not with_evidence:
            none = Evidence(torch.ones_like(scores), torch.ones_like(scores))
            return Outputs(scores, none, none, anchor)
        if params.method == "edl":
            evidence = self._evidence(z, block)
            log_odds = evidence.alpha.log() - evidence.beta.log()
            return Outputs(log_odds.masked_fill(~block.listed, -torch.inf), evidence, evidence, anchor)
        context = [self._lead(scores, block), standing] if params.evidence_context else []
        scaled = z * CONTEXT_SCALE if params.evidence_context else z
        evidences = {
            attached: self._evidence(torch.cat([scaled if attached else scaled.detach(), *context], 1), block)
            for attached in {params.cand_to_backbone, params.query_to_backbone}
        }
        return Outputs(scores, evidences[params.cand_to_backbone], evidences[params.query_to_backbone], anchor)

    def _evidence(self, z: torch.Tensor, block: CandidateBlock) -> Evidence:
        """The evidential head: note 2, with the priors of E-V8.

        With ``evidence_map=exponential`` a and b above 0 are exponentials of the last layer's outputs: softplus is
        linear there, and a μ of .99, which an easy query has, would need an a of 100. Above :data:`LINEAR_FROM` they
        continue as straight lines (E-V13).
        """
        params = self.params
        a, b = self.evidence(z).unbind(1)
        if params.evidence_map == "exponential":
            a, b = (torch.where(side > 0, grown(side, LINEAR_FROM), side) for side in (a, b))
        alpha_beta = beta_parameters(a, b, params.prior_positive or 0.0, params.prior_negative or 0.0)
        return Evidence(*(block.spread(side, 1.0) for side in alpha_beta))

    @staticmethod
    def _lead(scores: torch.Tensor, block: CandidateBlock) -> torch.Tensor:
        """How each score compares with the query's other scores, (P, 5).

        For the candidate: its softmax probability, the log odds of that, and the lead over the best other candidate.
        For its query: the entropy of the probabilities, in nats, and ``ln`` of the number of candidates.
        """
        scores = scores.detach()
        best, second = functional.pad(scores, (0, 1), value=-torch.inf).topk(2, 1).values.unsqueeze(2).unbind(1)
        other = torch.where(scores == best, second, best)
        ahead = (scores - other).masked_fill(~block.listed, 0).clamp(-MAX_GAP, MAX_GAP)
        shares = scores.log_softmax(1).masked_fill(~block.listed, -MAX_GAP)
        share = shares.clamp(-MAX_GAP, -1e-6)
        entropy = -(shares.exp() * shares).masked_fill(~block.listed, 0).sum(1)
        of_query = torch.stack([entropy, block.listed.sum(1).clamp(min=1).log()], 1) / GAP_UNIT
        of_candidate = torch.stack([2 * share.exp() - 1, (share - log1mexp(share)) / GAP_UNIT, ahead / GAP_UNIT], 2)
        return torch.cat([of_candidate[block.row, block.column], of_query[block.row]], 1)
