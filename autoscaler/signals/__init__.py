"""Turns what topics say of a pool into the signals of a decision."""
