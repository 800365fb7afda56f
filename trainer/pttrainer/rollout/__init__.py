"""Sampling of completions: one engine protocol (`protocol`), and the engine that runs the model itself (`native`)."""
