"""Rules over histories, rows and files that say whether a promise held; no I/O."""
