"""How K members share one set of tensors: whose columns are where, and numbers that no neighbour changes."""
