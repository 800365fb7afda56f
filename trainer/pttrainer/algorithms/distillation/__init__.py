"""Distillation: from another model, or from oneself."""
