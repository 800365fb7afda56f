"""Qwen: 2, 2.5, 3, 3 with experts, Next, 3.5, and the vision tower of 3 and 3.5."""
