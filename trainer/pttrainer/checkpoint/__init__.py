"""Saved state: checkpoints, which of them stay, forks, the exported model."""
