"""Llama: 3 and 4."""
