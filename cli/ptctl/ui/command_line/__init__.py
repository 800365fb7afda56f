"""The command line as click reads it: verbs, groups, options, and the flags and commands of XPK and gcluster."""
