"""Objects at rest: the store, watches, lists, selectors."""
