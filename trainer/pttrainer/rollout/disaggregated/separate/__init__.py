"""Samplers with pods of their own: weights sent over HTTP, prompts routed, samples drawn again when one is lost."""
