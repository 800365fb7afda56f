"""Episodes as the child processes hold them: one module for each kind of environment."""
