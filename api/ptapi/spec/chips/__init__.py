"""The job's chips: which and how many, how they are obtained, and one controller for all of them."""
