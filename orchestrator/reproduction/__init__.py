"""Records repeated: a run once more, and what can not be the same."""
