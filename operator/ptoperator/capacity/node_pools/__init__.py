"""Node pools: of a slice, of Pathways' heads, given back, and orphaned. Pure."""
