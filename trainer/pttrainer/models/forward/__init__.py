"""The forward pass of packed rows, as in training; what it shares with decoding."""
