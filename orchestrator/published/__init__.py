"""Published tables and figures, run once more and set beside what was printed."""
