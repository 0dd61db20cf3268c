"""Batches, single requests and dead letters: routes and their objects."""
