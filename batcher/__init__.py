"""The Faust application that forms batches and dispatches them against capacity."""
