"""The training loop of a stacked model, and what it does about steps that overflow or spike."""
