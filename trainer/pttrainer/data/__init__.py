"""From a file of examples to batches: rows, examples, packing, batches, in this order."""
