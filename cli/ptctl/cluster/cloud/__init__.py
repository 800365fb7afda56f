"""Google's APIs: where they are, who asks, what they answer and what they refuse."""
