"""The benchmarks: each module has the name of its benchmark and a function `measure`."""
