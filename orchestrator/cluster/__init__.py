"""Ray clusters: connection, preflight checks, reservations, preemption, fair share."""
