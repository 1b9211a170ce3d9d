"""The command line: its verbs, one file per group, and exit codes."""
