"""How K members are stacked in one set of tensors, with numbers independent of the other members of the pack."""
