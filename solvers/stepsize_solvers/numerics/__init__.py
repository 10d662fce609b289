"""Linear algebra that the project's own methods share, and when they stop."""
