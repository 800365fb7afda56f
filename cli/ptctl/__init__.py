"""ptctl: the command line of posttrain. One file per verb, kubectl's vocabulary, no heavy imports at startup."""
