"""Run folders, leases, usage log, synchronisation with object stores."""
