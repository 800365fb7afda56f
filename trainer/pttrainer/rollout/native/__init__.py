"""The engine that samples with the training model itself."""
