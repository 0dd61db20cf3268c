"""Measures of trials, their statistics, and the report."""
