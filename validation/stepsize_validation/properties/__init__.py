"""Property checks in exact arithmetic."""
