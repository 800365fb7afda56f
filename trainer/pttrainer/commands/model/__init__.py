"""What comes after training: a model served (OpenAI's API) or talked to, sampled by the native engine."""
