"""Rules for rollouts: sampling, environments and rewards."""
