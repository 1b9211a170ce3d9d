"""What runs, seen from outside: each driver's pulse, Prometheus metrics, and the terminal's live view."""
