"""Matrix factorisation trained by sequential SGD, an epoch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.recommender.sequential import kernel
from workloads.recommender.sequential.choice import Bayes, mirrored
from workloads.recommender.sequential.draws import (
    POPULARITY,
    RANKED,
    UNIFORM,
    Floats,
    Pairs,
    Proposal,
    alias_tables,
    pairs,
    shuffle,
)
from workloads.recommender.sequential.kernel import Feedback, Keys, Tables
from workloads.recommender.sequential.updates import BCE, BPR, GBPR, MPR, REWEIGHTED, TRUNCATED, Rule
from workloads.seeding import derive

Loss: TypeAlias = Literal["bpr", "bce", "denoise_truncated_bpr", "denoise_reweighted", "gbpr", "mpr"]
Sampler: TypeAlias = Literal["uniform", "popularity", "aobpr", "dns", "bns", "bns_posterior", "bns_oracle"]

Lists: TypeAlias = tuple[NDArray[np.int64], NDArray[np.integer[Any]] | torch.Tensor]
"""Item lists of the users: those of user u are ``lists[1][lists[0][u]:lists[0][u + 1]]``, ascending."""

MAX_INTERACTIONS = 2**31 - 1
"""Most training interactions: their numbers are int32."""

LOSSES: dict[Loss, int] = {
    "bpr": BPR,
    "bce": BCE,
    "denoise_truncated_bpr": TRUNCATED,
    "denoise_reweighted": REWEIGHTED,
    "gbpr": GBPR,
    "mpr": MPR,
}
CHOICES: dict[Sampler, int] = {
    "uniform": kernel.FIRST,
    "popularity": kernel.FIRST,
    "aobpr": kernel.RANKED,
    "dns": kernel.HARDEST,
    "bns": kernel.BAYESIAN,
    "bns_posterior": kernel.BAYESIAN,
    "bns_oracle": kernel.BAYESIAN,
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to train. Defaults are those of thesis 4.5.1.2 and 4.5.2.3."""

    loss: Loss = "bpr"
    sampler: Sampler = "uniform"
    lr: float = 0.01
    reg: float = 0.01
    candidates: int = 5
    """|M_u| of dns and bns, drawn without replacement (E-4.30)."""
    power: float = 0.75
    """popularity: weights pop^power."""
    aobpr_lambda: float = 100.0
    """aobpr: λ of exp(-rank/λ), the rank among the user's unobserved items."""
    bns_lambda: float = 5.0
    """bns, bns_oracle: λ of (4.24)."""
    bns_uniform_epochs: int = 0
    """Epochs of uniform negatives before bns takes over: BNS-2."""
    threshold: float = 2.0
    """denoise_truncated_bpr: larger losses are dropped (thesis 3.5.1)."""
    beta: float = 0.2
    """denoise_reweighted: the weights' exponent."""
    rho: float = 0.4
    """gbpr: the group's share."""
    group: int = 3
    """gbpr: number of users in a group, including the triple's own."""
    lam: float = 0.5
    """mpr: the weight of its first order relation."""
    triples: int | None = None
    """None: an epoch is a pass over the interactions in random order. Otherwise the number of triples in an epoch,
    whose users are drawn uniformly, as in algorithm 1 of chapter 3 (1000 x users there)."""
    threads: int = 1
    """1 is reproducible to the last bit. Several threads update the tables without locks (Recht et al., NIPS 2011). In
    a pass each has an equal part of the interactions, sorted by user, so that a user is in two parts only at their
    boundary. Small tables train no faster: the threads contend for their rows."""


class SequentialMF:
    """A model in training. The tables are updated in place; nothing else is kept from one epoch to the next."""

    def __init__(
        self,
        users: torch.Tensor,
        items: torch.Tensor,
        indptr: NDArray[np.int64],
        positives: NDArray[np.integer[Any]] | torch.Tensor,
        settings: Settings,
        seed: int,
        *,
        prior: NDArray[np.float32] | None = None,
        group: NDArray[np.integer[Any]] | None = None,
        truth: Lists | None = None,
        planted: Lists | None = None,
    ) -> None:
        """Prepare what is constant over the epochs; compiles nothing yet.

        Args:
            users: W, (U, d), float32, contiguous, on the CPU.
            items: H, (I, d), the same.
            indptr: (U + 1,), the users' bounds in ``positives``.
            positives: the training items of user u are ``positives[indptr[u]:indptr[u + 1]]``, ascending, distinct.
            settings: how to train.
            seed: seeds the streams ``order``, ``negatives`` and ``extra``.
            prior: bns: P_fn(l), (G, I), a row for each group of users; default: (4.16), pop_l / N (E-4.16).
                bns_oracle: P_fn of items that are not false negatives; default: .04.
            group: (U,), each user's row of ``prior``; default: row 0.
            truth: unobserved items that are false negatives, as lists like ``indptr`` and ``positives``. Required by
                bns_oracle; with them an epoch measures ``tnr`` and ``inf``.
            planted: the same by the planted truth of generated data; with them an epoch measures ``fnr``.

        Raises:
            ValueError: bns_oracle without truth, no user with both a positive and a negative item, or more than
                :data:`MAX_INTERACTIONS`.
        """
        self.settings = settings
        self.seed = seed
        if settings.sampler == "bns_oracle" and truth is None:
            raise ValueError("sampler bns_oracle needs the false negatives: pass them as truth")
        W = _table(users)
        H = _table(items)
        n_users = len(W)
        n_items = len(H)
        if len(positives) > MAX_INTERACTIONS:
            raise ValueError(
                f"sequential SGD trains on at most {MAX_INTERACTIONS:,} interactions; these are {len(positives):,}"
            )
        observed = pairs(indptr, _array(positives), n_items)
        owners = np.repeat(np.arange(n_users, dtype=np.int32), np.diff(observed.indptr))
        degrees = np.diff(observed.indptr)
        active = (degrees > 0) & (degrees < n_items)
        self._rows = np.flatnonzero(active[owners]).astype(np.int32)
        if not len(self._rows):
            raise ValueError("there is no interaction that a negative item exists for")
        item_indptr = np.zeros(1, np.int64)
        item_users = np.zeros(0, np.int32)
        if settings.loss == "gbpr":
            item_indptr, item_users = _by_item(owners, observed, n_items)
        users_active = np.flatnonzero(active).astype(np.int32)
        labels = [_labels(lists, n_items) for lists in (truth, planted)]
        self._feedback = Feedback(owners, observed, item_indptr, item_users, users_active, *labels)
        counts = np.bincount(observed.items, minlength=n_items)
        self._proposal = _proposal(settings, counts)
        self._uniform = _proposal(Settings(), counts)
        if prior is None:
            oracle = settings.sampler == "bns_oracle"
            prior = np.zeros((0, 0), np.float32) if oracle else (counts / len(observed.items)).astype(np.float32)[None]
        self._prior = np.ascontiguousarray(prior, np.float32)
        self._group = np.zeros(n_users, np.int32) if group is None else np.ascontiguousarray(group, np.int32)
        ranks = CHOICES[settings.sampler] in (kernel.RANKED, kernel.BAYESIAN)
        self._tables = Tables(W, H, mirrored(H) if ranks else np.zeros((0, 0), np.float32))

    def train_epoch(
        self,
        epoch: int,
        *,
        lr: float | None = None,
        bns_lambda: float | None = None,
        credence: NDArray[np.float32] | torch.Tensor | None = None,
    ) -> dict[str, float]:
        """Train for an epoch. With ``threads`` 1 a pure function of tables, seed and epoch.

        Args:
            epoch: its number, from 1.
            lr: learning rate of this epoch; default: that of the settings.
            bns_lambda: λ of this epoch, likewise; BNS-1 lowers it over the epochs.
            credence: c_ui of (3.27) in the order of ``positives``, (n,); default: 1.

        Returns:
            ``loss``, the mean over the triples of loss times credence (nats); with truth also ``tnr`` (4.27) and
            ``inf`` (4.28), with planted truth ``fnr``, the share of the negatives that are false.
        """
        settings = self.settings
        tables = self._tables
        keys = Keys(*(np.uint64(derive(self.seed, stream, epoch)) for stream in Keys._fields))
        order_key = np.uint64(derive(self.seed, "order", epoch))
        order = self._rows.copy() if settings.triples is None else np.zeros(0, np.int32)
        total = settings.triples or len(order)
        choice = CHOICES[settings.sampler]
        proposal = self._proposal
        if epoch <= settings.bns_uniform_epochs:
            choice = kernel.FIRST
            proposal = self._uniform
            tables = tables._replace(mirror=np.zeros((0, 0), np.float32))
        elif tables.mirror.size:
            # The tables belong to the caller, who may have loaded others into them.
            tables.mirror[: tables.items.shape[1]] = tables.items.T
        weight = settings.bns_lambda if bns_lambda is None else bns_lambda
        posterior, oracle = (settings.sampler == name for name in ("bns_posterior", "bns_oracle"))
        bayes = Bayes(self._prior, self._group, float(weight), posterior, oracle)
        rule = _rule(settings, settings.lr if lr is None else lr)
        weights = np.zeros(0, np.float32) if credence is None else _array(credence).astype(np.float32, copy=False)

        def part(number: int) -> NDArray[np.float64]:
            first, last = (total * at // settings.threads for at in (number, number + 1))
            shuffle(order[first:last], order_key)
            tally: NDArray[np.float64] = kernel.train(
                tables, self._feedback, order, first, last, keys, proposal, choice, bayes, rule, weights
            )
            return tally

        return self._measures(_in_threads(part, settings.threads), total)

    def _measures(self, tallies: Sequence[NDArray[np.float64]], total: int) -> dict[str, float]:
        loss, true, inf, unliked, _ = (float(value) / total for value in np.sum(tallies, axis=0))
        measures = {"loss": loss}
        if len(self._feedback.truth.indptr):
            measures |= {"tnr": true, "inf": inf}
        if len(self._feedback.planted.indptr):
            measures["fnr"] = 1 - unliked
        return measures


def _in_threads(part: Any, threads: int) -> list[NDArray[np.float64]]:
    if threads == 1:
        return [part(0)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(part, range(threads)))


def _labels(lists: Lists | None, n_items: int) -> Pairs:
    if lists is None:
        return Pairs(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros((0, 0), np.uint64))
    return pairs(lists[0], _array(lists[1]), n_items)


def _rule(settings: Settings, lr: float) -> Rule:
    parameters = {
        "denoise_truncated_bpr": settings.threshold,
        "denoise_reweighted": settings.beta,
        "gbpr": settings.rho,
        "mpr": settings.lam,
    }
    parameter = float(parameters.get(settings.loss, 0.0))
    return Rule(LOSSES[settings.loss], parameter, settings.group, float(lr), float(settings.reg))


def _proposal(settings: Settings, counts: NDArray[np.int64]) -> Proposal:
    sampler = settings.sampler
    kind = {"popularity": POPULARITY, "aobpr": RANKED}.get(sampler, UNIFORM)
    many = CHOICES[sampler] in (kernel.HARDEST, kernel.BAYESIAN)
    count = min(settings.candidates, len(counts)) if many else 1
    weights = counts.astype(np.float64) ** settings.power if kind == POPULARITY else np.zeros(0)
    share, alias = alias_tables(weights)
    return Proposal(kind, count, many, weights, share, alias, float(settings.aobpr_lambda))


def _by_item(owners: NDArray[np.int32], observed: Pairs, n_items: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The users of each item, as bounds and a list."""
    counts = np.bincount(observed.items, minlength=n_items)
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return indptr, owners[np.argsort(observed.items, kind="stable")]


def _table(tensor: torch.Tensor) -> Floats:
    """View a tensor as an array that shares its memory."""
    if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError("tables must be contiguous float32 tensors on the CPU")
    table: Floats = tensor.detach().numpy()
    return table


def _array(values: NDArray[Any] | torch.Tensor) -> NDArray[Any]:
    return values.numpy() if isinstance(values, torch.Tensor) else values
