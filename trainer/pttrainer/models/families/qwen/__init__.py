"""Qwen: 2, 2.5, 3, 3 with experts, Next, and 3.5."""
