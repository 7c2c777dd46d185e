"""Names in an adapter's folder as peft writes it."""

__all__ = ["CONFIG", "PREFIX", "WEIGHTS"]

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
"""Before every tensor's name."""
