"""Samples of CPU and memory, paired runs and confidence intervals."""
