"""LoRA adapters as model versions: checks of their files."""
