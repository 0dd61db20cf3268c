"""Replicas in standby: loaded and warm, and in no consumer group until they are needed."""
