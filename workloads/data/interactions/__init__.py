"""Who interacted with what: formats, generated sets, splits and variants."""
