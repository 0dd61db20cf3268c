"""Engines behind one interface: vLLM in process, any OpenAI-shaped upstream, simulated."""
