"""What each verb of `ptctl cluster` does, from flags to the console."""
