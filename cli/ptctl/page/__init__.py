"""The page of `ptctl ui`: jobs, curves, samples and capacity in a browser."""
