"""`ptctl demo`: the product in minutes, on a laptop. A small model learns to add: first by imitation, then by reward."""
