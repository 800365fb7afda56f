"""A stand-in for the trainer: starts in a moment, keeps the trainer's contract, does what its environment says."""
