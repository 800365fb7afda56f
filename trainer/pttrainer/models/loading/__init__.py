"""Build the model of a job: its configuration, weights, adapters, value head."""
