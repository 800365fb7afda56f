"""Data that distillation adds: the teacher's log-probs, and context that only the teacher sees."""
