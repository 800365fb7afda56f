"""Tools that models call: the builtin ones, and those of MCP servers."""
