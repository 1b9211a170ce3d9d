"""One experiment, trained: in this process, in a trial, or as a Ray Train group."""
