"""Memory by formula."""
