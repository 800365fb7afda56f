"""The rules themselves: one value each, with its CEL expression, its Python check and its message."""
