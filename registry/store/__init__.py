"""Rows of the model registry: versions, what their names mean, keys, and changes to them."""
