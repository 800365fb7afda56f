"""Rewards that come with posttrain, one file each."""
