"""Mistral and Ministral 3."""
