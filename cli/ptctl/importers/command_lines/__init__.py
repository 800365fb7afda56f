"""Command lines of XPK and gcluster: shell scripts read without running them, flags, and the job of each command."""
