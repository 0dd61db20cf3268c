"""Validation of input files: checks every line and records the verdict."""
