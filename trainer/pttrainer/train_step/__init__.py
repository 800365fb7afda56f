"""One optimizer step: micro-batches, gradients, the update."""
