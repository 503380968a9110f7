"""How a feature becomes a score per class."""
