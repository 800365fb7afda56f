"""The terminal: console, tables, durations, interrupts, exit codes; `command_line/` is what click reads."""
