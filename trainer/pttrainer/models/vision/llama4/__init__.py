"""The vision tower of Llama 4, for images cut into tiles."""
