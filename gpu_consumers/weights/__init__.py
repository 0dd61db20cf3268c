"""Verifies a model version and stages its files on local disk before the engine loads it."""
