"""The kinds that are served: built-in ones, and those of CustomResourceDefinitions."""
