"""Audit of a job: recomputes its totals from its rows, the usage ledger and the log."""
