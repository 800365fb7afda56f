"""What answers the model between its turns: tools that it calls (`tools`), or a world of the user's (`world`).

`protocol` is what a rollout of several turns asks for; `toolcalls` knows how families of models write a call. Adding a
builtin tool: a module with `TOOL`, a line in `tools.BUILTINS`, a test. Nothing here imports jax.
"""
