"""Rebuilds rows of ended jobs from the log: into shadow tables, compared, optionally swapped."""
