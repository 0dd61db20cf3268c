"""HTTP in, HTTP out: OpenAI-shaped files, batches and models."""
