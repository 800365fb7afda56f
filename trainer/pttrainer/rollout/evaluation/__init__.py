"""Evaluation by sampling: held-out prompts and metrics of their answers."""
