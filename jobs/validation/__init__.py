"""Validation of input files before a job runs."""
