"""Images of rows: where they are, their bytes, their pixels."""
