"""Structural schemas: validation, defaulting, pruning, CEL rules."""
