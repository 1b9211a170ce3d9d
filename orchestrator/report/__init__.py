"""Lists, comparisons, statistics, plots and HTML pages of finished runs."""
