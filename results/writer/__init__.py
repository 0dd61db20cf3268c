"""The results-writer role: outcomes from the `results` topic to item rows, counters and ledger."""
