"""Quantized frozen weights."""
