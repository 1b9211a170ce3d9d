"""Sweeps: request, trial manager, executors (local, Tune, groups, packs), winner."""
