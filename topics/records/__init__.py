"""Record schemas, the topic catalogue, headers, encoding and partitioning."""
