"""Mistral, Mixtral and Ministral 3."""
