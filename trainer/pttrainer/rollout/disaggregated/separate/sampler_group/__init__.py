"""A sampler of several processes: one speaks to the trainer, and all hold a part of the weights."""
