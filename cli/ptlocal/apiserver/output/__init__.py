"""How objects are shown: tables, printer columns, ages, other versions of an API."""
