"""Encryption at rest: data keys and the bodies encrypted under them."""
