"""vLLM in this process, behind its own OpenAI serving layer."""
