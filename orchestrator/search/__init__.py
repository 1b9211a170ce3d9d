"""What a sweep tries: the study in its journal, samplers, schedulers, search spaces."""
