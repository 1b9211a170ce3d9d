"""Where trials run: the ledger that hands them out, Ray Tune, groups and packs of trials."""
