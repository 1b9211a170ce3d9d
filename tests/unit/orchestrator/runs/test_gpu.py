"""A worker's share of a GPU. Without a GPU the test is skipped; ``make test-gpu`` runs it."""

from __future__ import annotations

import pytest
import torch

from orchestrator.config.spec import Resources
from orchestrator.runs import reports, worker

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def test_worker_beyond_its_share_of_gpu_memory_fails_with_out_of_memory() -> None:
    """With a share of a tenth of the memory, a fifth cannot be allocated, however much is free."""
    device = worker.take_device(Resources(gpus_per_worker=0.1))
    try:
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(torch.cuda.get_device_properties(device).total_memory // 5, dtype=torch.uint8, device=device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    told = reports.describe(caught.value)
    assert told.startswith("out of memory (")
    assert "\n" not in told
