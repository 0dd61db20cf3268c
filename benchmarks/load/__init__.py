"""Clients that put load on a stack."""
