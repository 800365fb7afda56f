"""The embedded cluster's API server."""
