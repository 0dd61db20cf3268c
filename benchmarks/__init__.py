"""Benchmarks of Millrace: `make bench`, or `python -m benchmarks [names…]`; see README.md."""
