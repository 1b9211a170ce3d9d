"""Export registered models to the formats of other tools."""
