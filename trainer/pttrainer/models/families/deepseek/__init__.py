"""DeepSeek, and the families that route like it."""
