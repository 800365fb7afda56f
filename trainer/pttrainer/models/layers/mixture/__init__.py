"""A mixture of experts in place of the MLP: router, dispatch, grouped products, and all of it over a mesh."""
