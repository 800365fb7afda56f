"""Sampling on devices of its own: meshes, placement, weight transfer, batches ahead of training."""
