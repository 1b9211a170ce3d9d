"""Configuration: specs, plans, options, parsing, the selection metric, loading of workloads."""
