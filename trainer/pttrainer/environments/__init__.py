"""Multi-turn environments: tools that the model calls (`tool_environment`), or a user's own (`python_environment`).

`environment` is the interface that a multi-turn rollout uses; `tool_call_parsing` knows how model families write a
call. To add a builtin tool: a module with `TOOL`, a line in `tool_environment.BUILTINS`, a test. Nothing here imports
jax.
"""
