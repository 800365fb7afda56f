"""Qwen: 2, 2.5, 3, and 3 with experts."""
