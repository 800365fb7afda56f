"""Rules for the chips: which, how they are obtained, and one controller for all of them."""
