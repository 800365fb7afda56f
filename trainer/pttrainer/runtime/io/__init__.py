"""Files on disk, in buckets and on the Hugging Face hub."""
