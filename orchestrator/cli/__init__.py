"""The command line: verbs, one file a group, and exit codes."""
