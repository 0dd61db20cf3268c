"""The results-writer role: outcomes from the log into item rows, counters and the usage ledger."""
