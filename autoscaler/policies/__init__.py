"""Scaling policies: a TOML file that says how many replicas each pool may have, and of what."""
