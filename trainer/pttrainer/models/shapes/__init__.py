"""What a config alone decides: every weight's shape, memory, floating-point operations. No jax."""
