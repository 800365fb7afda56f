"""ptctl: the command line of posttrain. Verbs in one file each, kubectl's words, nothing heavy at start."""
