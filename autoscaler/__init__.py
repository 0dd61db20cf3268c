"""Lag to wanted replicas; the room exists, its rules come with scaling."""
