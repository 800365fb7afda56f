"""Servers of models in a cluster, as the operator renders them: defined by flags, applied, listed, deleted."""
