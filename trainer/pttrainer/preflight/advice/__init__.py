"""What would fit instead."""
