"""Proof on one machine: real processes, planned faults, recorded histories, judged promises."""
