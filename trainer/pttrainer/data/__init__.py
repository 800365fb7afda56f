"""Training data, from files to batches: rows, examples, packing, batches, in this order."""
