"""Loss functions: one per formula, from tensors to tensors."""
