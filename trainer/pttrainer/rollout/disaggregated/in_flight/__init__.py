"""Samples that outlive a weight update (`rollout.inFlightUpdates`): their tokens, the rows that go on, the stream."""
