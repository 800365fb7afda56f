"""Data that distillation adds: the teacher's log-probs, context that only the teacher sees."""
