"""The rules across fields, a module per section of the spec; `ptapi.validation` puts them in order."""
