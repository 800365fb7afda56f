"""Weights in Hugging Face's layout: names, safetensors files, reading and writing."""
