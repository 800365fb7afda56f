"""The training loop: set up, load, step, log, save."""
