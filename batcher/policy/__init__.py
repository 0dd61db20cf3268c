"""Pure scheduling rules: closing, fairness, credits. The clock is an argument."""
