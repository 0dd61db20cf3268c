"""Signatures of model folders: OpenSSF Model Signing 1.0 with keys on the curve P-256."""
