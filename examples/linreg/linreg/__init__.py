"""Linear regression as a workload of another package: ``pip install -e .`` adds it to the orchestrator.

    orchestrator run linreg epochs=20 lr=0.1
    orchestrator sweep linreg --trials 8 --register slopes

This module is imported to list the workloads, so it must not import large packages.
"""

from workloads.catalog import Entry

ENTRY = Entry(
    params="linreg.params:Params",
    workload="linreg.workload:LinReg",
    summary="Linear regression on three planted slopes.",
    spaces="linreg.spaces",
)
