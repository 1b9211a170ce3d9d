"""The record that makes a run repeatable: code, packages, machine, command."""
