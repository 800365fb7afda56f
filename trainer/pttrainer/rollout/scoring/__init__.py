"""Scores of samples: the rewards of a job where several processes train, and reward models on the chips."""
