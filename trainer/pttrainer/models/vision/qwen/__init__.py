"""The vision tower of Qwen3-VL and Qwen 3.5, for images of any size."""
