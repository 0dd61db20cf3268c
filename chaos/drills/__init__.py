"""Trials of promises: each module drives a real installation and hands its evidence to judges."""
