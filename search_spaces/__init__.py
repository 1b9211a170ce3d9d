"""Search spaces: one module a workload, each preset a function ``(trial) -> params``."""
