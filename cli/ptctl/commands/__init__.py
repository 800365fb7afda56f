"""The commands of `ptctl`, one file each: flags and examples. Other packages do the work."""
