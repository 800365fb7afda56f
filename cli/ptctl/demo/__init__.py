"""`ptctl demo`: the product in minutes, on a laptop: a small model learns to add, by imitation and by reward."""
