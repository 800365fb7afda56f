"""Create, update, patch, apply, delete: the semantics of a write, without HTTP."""
