"""A run's logs, metrics, samples, ranks and links."""
