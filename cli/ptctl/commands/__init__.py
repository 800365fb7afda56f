"""The commands of `ptctl`, one file each: flags and examples; the work is done by the rooms beside."""
