"""Questions over knowledge graphs: formats, a generated set, the triples around a topic."""
