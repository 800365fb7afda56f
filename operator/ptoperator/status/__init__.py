"""Build the status: phases, conditions, progress, restarts, cost, links, Events."""
