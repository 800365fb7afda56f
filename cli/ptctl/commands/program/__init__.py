"""Commands about ptctl itself."""
