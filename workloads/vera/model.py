"""The retrieval backbone over text and graph features, with a ranking head and an evidential head. Note 2 and 5."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from workloads.losses.evidential import beta_parameters, log1mexp
from workloads.seeding import derive
from workloads.vera.dataset import Block, VeraData
from workloads.vera.params import Params

START_A, START_B = -4.0, 1.0
"""Biases of the evidential head's two outputs: few candidates are right (E-V8)."""

MAX_GAP, GAP_UNIT = 20.0, 4.0
"""How far apart two scores are at most, as the evidential head sees them, and what counts as one there."""

CONTEXT_SCALE = 0.03
"""What z is multiplied by where the evidential head sees the other candidates too: a few hundred queries tell how far
a lead can be trusted, but not what each of many dimensions means."""

LINEAR_FROM = 9.0
"""Where VERA's outputs a and b go on in a straight line: ``e^9`` is a μ within .0003 of 1."""


class HeadInputs(NamedTuple):
    """What the heads see of P candidates: z (P, h), and its features as they are and among the others', (P, G)."""

    z: torch.Tensor
    standing: torch.Tensor


class Evidence(NamedTuple):
    """Parameters α and β of a Beta distribution for each candidate, (B, C); 1 where there is none."""

    alpha: torch.Tensor
    beta: torch.Tensor


class Outputs(NamedTuple):
    """Scores (B, C), -inf where there is no candidate, and the evidence, as L_cand and as L_query train it.

    ``anchor`` is 0 and depends on every parameter: added to a loss it gives each a gradient in every stage, which is
    what other ranks wait for.
    """

    scores: torch.Tensor
    cand: Evidence
    query: Evidence
    anchor: torch.Tensor


class Backbone(nn.Module):
    """``z = f(x)``: each candidate's vector from its text, its features and how they meet the query's text."""

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
        self.dropout = nn.Dropout(params.dropout)
        self.register_buffer("mean", torch.zeros(numbers))
        self.register_buffer("deviation", torch.ones(numbers))

    def forward(self, data: VeraData, block: Block) -> HeadInputs:
        """z of each candidate. Vectors of texts have length one; they enter with entries of about one."""
        queries, texts = data.queries[block.queries], data.texts[block.texts]
        cosine = (queries @ texts.T)[block.row, block.text_row]
        scale = queries.shape[1] ** 0.5
        query, text = self.query(queries * scale), self.text(texts * scale)
        numbers = (data.numbers[block.pool_row] - self.mean) / self.deviation
        numbers = torch.cat([numbers, cosine.unsqueeze(1)], 1)
        standing = torch.cat([numbers, self._among(numbers, block)], 1)
        rows = torch.cat([block.text_row.unsqueeze(1), data.codes[block.pool_row] + len(text)], 1)
        table = torch.cat([text, self.category.weight])
        known = functional.embedding_bag(rows, table, mode="sum", padding_idx=len(text))
        candidate = torch.addmm(known, standing, self.number.weight.T)
        meet = self.met_by_query if candidate.device.type == "cpu" else self.met
        return HeadInputs(self.dropout(self.norm(functional.gelu(meet(query, candidate, block)))), standing)

    def met(self, query: torch.Tensor, candidate: torch.Tensor, block: Block) -> torch.Tensor:
        """``M (q ⊙ c) + O c + A q`` of each candidate c (P, h) and its query q (B, h), (P, h)."""
        own, asked = self.own(candidate), self.asked(query)
        found: torch.Tensor = self.match(query[block.row] * candidate) + own + asked[block.row]
        return found

    def met_by_query(self, query: torch.Tensor, candidate: torch.Tensor, block: Block) -> torch.Tensor:
        """The same as ``(M diag(q) + O) c + A q``: a matrix a query and half the work, in as many calls as queries."""
        weights = self.match.weight * query.unsqueeze(1) + self.own.weight
        biases = self.asked(query) + self.match.bias
        parts = zip(biases, torch.split(candidate, block.lengths), weights)
        return torch.cat([torch.addmm(bias, part, weight.T) for bias, part, weight in parts])

    @torch.no_grad()
    def scale_to(self, numbers: torch.Tensor) -> None:
        """Take mean and deviation of the features from those of training candidates, (n, F)."""
        if len(numbers) > 1:
            self.mean.copy_(numbers.mean(0))
            self.deviation.copy_(numbers.std(0).clamp(min=1e-3))

    @staticmethod
    def _among(numbers: torch.Tensor, block: Block) -> torch.Tensor:
        """Features with mean 0 and deviation 1 among the query's candidates, (P, F)."""
        count = block.listed.sum(1, keepdim=True).clamp(min=1)
        zeros = numbers.new_zeros(len(block.queries), numbers.shape[1])
        centred = numbers - (zeros.index_add(0, block.row, numbers) / count)[block.row]
        deviation = (zeros.index_add(0, block.row, centred.square()) / count).sqrt()
        return centred / torch.where(deviation > 1e-6, deviation, 1)[block.row]


class Retriever(nn.Module):
    """The backbone, the ranking head and the evidential head; a baseline uses one of them."""

    def __init__(self, data: VeraData, params: Params, seed: int) -> None:
        """Build on the CPU, from the seed alone."""
        super().__init__()
        self.params, pool = params, data.pool
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(derive(seed, "init"))
            self.backbone = Backbone(data.queries.shape[1], len(pool.categories), len(pool.number_names), params)
            # No bias here nor before: a softmax over candidates does not see it.
            self.ranking = nn.Linear(params.hidden, 1, bias=False)
            last = nn.Linear(params.hidden, 2)
            beside = 5 + self.backbone.standing if params.evidence_context else 0
            self.evidence = nn.Sequential(nn.Linear(params.hidden + beside, params.hidden), nn.GELU(), last)
        last.bias.data = torch.tensor([START_A, START_B])

    def forward(
        self,
        data: VeraData,
        block: Block,
        with_backbone: bool = True,
        with_evidence: bool = True,
        known: HeadInputs | None = None,
    ) -> Outputs:
        """Score all candidates of a block.

        Args:
            data: what to gather from.
            block: B queries.
            with_backbone: without it no gradient reaches the backbone and the ranking head.
            with_evidence: without it the evidence is 1, for losses that do not read it.
            known: what the heads see of the block's candidates, where a frozen backbone has read them.
        """
        params = self.params
        with torch.set_grad_enabled(torch.is_grad_enabled() and with_backbone):
            z, standing = self.backbone(data, block) if known is None else known
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
        beside = z * CONTEXT_SCALE if params.evidence_context else z
        read = {
            attached: self._evidence(torch.cat([beside if attached else beside.detach(), *context], 1), block)
            for attached in {params.cand_to_backbone, params.query_to_backbone}
        }
        return Outputs(scores, read[params.cand_to_backbone], read[params.query_to_backbone], anchor)

    def _evidence(self, z: torch.Tensor, block: Block) -> Evidence:
        """Note 2 (E-V8 for the priors).

        Above 0, VERA's a and b are exponentials of the last layer's outputs: softplus is linear there, and a μ of .99,
        which an easy query has, would need an a of 100. Above :data:`LINEAR_FROM` they continue as straight lines.
        """
        params, (a, b) = self.params, self.evidence(z).unbind(1)
        if params.method == "vera":
            a, b = (torch.where(side > 0, _grown(side), side) for side in (a, b))
        found = beta_parameters(a, b, params.prior_positive or 0.0, params.prior_negative or 0.0)
        return Evidence(*(block.spread(side, 1.0) for side in found))

    @staticmethod
    def _lead(scores: torch.Tensor, block: Block) -> torch.Tensor:
        """Of each candidate the share of the softmax, its log odds, and the lead over the best other one; of its query
        the entropy of the shares, in nats, and ``ln`` of how many candidates there are, (P, 5)."""
        scores = scores.detach()
        best, second = functional.pad(scores, (0, 1), value=-torch.inf).topk(2, 1).values.unsqueeze(2).unbind(1)
        other = torch.where(scores == best, second, best)
        ahead = (scores - other).masked_fill(~block.listed, 0).clamp(-MAX_GAP, MAX_GAP)
        shares = scores.log_softmax(1).masked_fill(~block.listed, -MAX_GAP)
        share = shares.clamp(-MAX_GAP, -1e-6)
        entropy = -(shares.exp() * shares).masked_fill(~block.listed, 0).sum(1)
        of_query = torch.stack([entropy, block.listed.sum(1).clamp(min=1).log()], 1) / GAP_UNIT
        seen = torch.stack([2 * share.exp() - 1, (share - log1mexp(share)) / GAP_UNIT, ahead / GAP_UNIT], 2)
        return torch.cat([seen[block.row, block.column], of_query[block.row]], 1)


def _grown(side: torch.Tensor) -> torch.Tensor:
    low = side.clamp(0, LINEAR_FROM)
    return low.expm1() + math.exp(LINEAR_FROM) * (side - low)
