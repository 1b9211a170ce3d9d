"""Search spaces: one module per workload, one function ``(trial) -> params`` per preset."""
