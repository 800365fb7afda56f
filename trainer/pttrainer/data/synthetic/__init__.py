"""Data made from a seed, for demos, tests and benchmarks."""
