"""The modules of a decoder, as flax.nnx: linear layers, norms, attention, MLP, experts, and the decoder."""
