"""Measurements of Millrace: `make bench`, or `python -m benchmarks [names…]` (README.md beside)."""
