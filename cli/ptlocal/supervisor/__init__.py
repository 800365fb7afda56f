"""The background process that holds the embedded cluster: children, readiness, state."""
