"""The options of vLLM that a model version may carry, under vLLM's own names."""
