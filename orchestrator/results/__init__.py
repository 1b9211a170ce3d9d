"""What was run: lists, comparisons, plots, pages."""
