"""Episodes of several turns with an environment."""
