"""Questions over knowledge graphs: formats, a generated set, neighbourhoods of topics."""
