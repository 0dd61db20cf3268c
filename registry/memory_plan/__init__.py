"""The memory that a model version needs on each device, computed before it is loaded."""
