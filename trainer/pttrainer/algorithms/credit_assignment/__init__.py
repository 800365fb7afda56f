"""From rewards to advantages: how much better or worse than expected a sample or a token was."""
