"""The REST face: OpenAI-compatible routes, health and metrics."""
