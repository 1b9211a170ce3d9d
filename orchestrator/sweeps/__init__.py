"""One sweep: its request, its trials, their executors, its winner."""
