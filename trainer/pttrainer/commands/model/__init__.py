"""What comes after training: a model measured, served (OpenAI's API) or talked to, sampled by the native engine."""
