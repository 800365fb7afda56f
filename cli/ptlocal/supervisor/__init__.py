"""The background process that runs the embedded cluster: children, readiness, state."""
