"""Text on its way in and out: YAML as kubectl reads it, values in messages, terminal-safe output."""
