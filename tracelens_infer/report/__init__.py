"""Results -> files and texts for people: tables, manifests, summaries."""
