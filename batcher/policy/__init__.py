"""Pure scheduling rules: batch closing, fairness, credits, requeueing. The clock is an argument."""
