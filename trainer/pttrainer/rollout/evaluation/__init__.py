"""Evaluation by sampling: held-out prompts, what their answers say."""
