"""The command line: one file a group of verbs, their options, and exit codes."""
