"""Named streams derived from one seed."""

from __future__ import annotations

import itertools
import subprocess
import sys

import torch

from workloads.seeding import derive, generator, random_order


def test_different_arguments_give_different_seeds() -> None:
    combinations = itertools.product((0, 1, 12), ("order", "init"), (0, 1, 12), (0, 1))
    seeds = [derive(*combination) for combination in combinations]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_derived_seed_is_equal_in_another_process() -> None:
    """Python's ``hash`` of a string differs between processes."""
    command = "from workloads.seeding import derive; print(derive(7, 'order', 3, 1))"
    found = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert int(found.stdout) == derive(7, "order", 3, 1)


def test_random_order_contains_each_number_once() -> None:
    assert random_order(6, 1).tolist() == [2, 4, 5, 0, 3, 1]
    assert sorted(random_order(50, 1).tolist()) == list(range(50))
    assert random_order(50, 1).tolist() != random_order(50, 2).tolist()


def test_generator_of_equal_seed_and_name_repeats_its_numbers() -> None:
    first, again = (torch.rand(4, generator=generator(7, "init")) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, torch.rand(4, generator=generator(8, "init")))
