"""Stacks and services under measurement, and verification of their output."""
