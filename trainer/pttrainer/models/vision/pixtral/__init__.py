"""Pixtral's tower and Mistral 3's projector: images of any size."""
