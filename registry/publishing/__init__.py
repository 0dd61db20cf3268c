"""Publishes a model's folder: its files, its manifest and its signatures as objects."""
