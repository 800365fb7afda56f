"""Copies of a run's result: in a directory, a bucket, or a repository of the Hugging Face hub."""
