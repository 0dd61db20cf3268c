"""Decides each second over every pool, and has the orders carried out."""
