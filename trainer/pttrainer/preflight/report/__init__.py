"""The verdict for people, the operator, and the next job of the same shape."""
