"""Computes the number of replicas from lag."""
