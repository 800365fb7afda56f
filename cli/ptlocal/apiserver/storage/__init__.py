"""Storage: the store, watches, lists, selectors."""
