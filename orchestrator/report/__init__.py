"""Lists, comparisons, statistics, plots and HTML pages of runs and sweeps."""
