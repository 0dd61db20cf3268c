"""Engines behind one interface: vLLM in process, an OpenAI-compatible upstream, simulated."""
