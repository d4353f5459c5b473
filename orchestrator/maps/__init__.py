"""From the ledger to stability maps, and the questions that a map answers."""
