"""The conformance suite that every workload must pass. Other packages inherit from it.

::

    class TestMine(Conformance):
        workload = Mine
        params = {"dataset": "synthetic", "batch_size": 64}

        @contextmanager
        def spoiled_test(self):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(mine, "load_test", lambda: load_test()[::2])
                yield

``spoiled_test`` is a context manager in which a newly built workload reads another test split; training must not
change. Set ``data`` (a folder) if the parameters name a dataset on disk. Everything runs on the CPU.
"""

import pytest

# Before the import: else failures in the tests of other packages would show no values.
pytest.register_assert_rewrite("workloads.testing_conformance")

from workloads.testing_conformance import Conformance, values  # noqa: E402

__all__ = ["Conformance", "values"]
