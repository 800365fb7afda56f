"""Output of objects: tables, printer columns, ages, other versions of an API."""
