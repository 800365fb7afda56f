"""Pages of prompts that are computed once: for the turns of an episode, and for prompts with a common beginning."""
