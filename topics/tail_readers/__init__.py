"""Readers of whole topics without a consumer group, and the state they build."""
