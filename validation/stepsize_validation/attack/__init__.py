"""Random problems against exact referees."""
