"""Execution of online calls."""
