"""The run directory as the trainer uses it: whose it is, who writes, what it was made of, how far it came."""
