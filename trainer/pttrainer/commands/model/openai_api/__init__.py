"""OpenAI's API on a loaded model: bodies, conversations with tools and images, answers, and the HTTP server."""
