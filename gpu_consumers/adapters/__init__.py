"""LoRA adapters of a replica: which are loaded, and which job needs which."""
