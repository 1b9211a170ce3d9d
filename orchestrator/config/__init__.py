"""What a user asks for: parsing, specs, plans and the selection metric."""
