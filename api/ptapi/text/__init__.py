"""Text in and out: YAML as kubectl parses it, values in messages, terminal-safe output."""
