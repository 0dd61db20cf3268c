"""Computes the number of replicas from lag; nothing is implemented yet."""
