"""The vision tower of Gemma 4, for images of any proportions."""
