"""The training loop of a stacked model, and how it handles steps that overflow or spike."""
