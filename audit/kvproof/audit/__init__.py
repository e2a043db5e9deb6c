"""Pointing the rules at a running engine: targets, workloads, fuzzing, shrinking, reports and the command line."""
