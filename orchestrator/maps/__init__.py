"""From the ledger to stability maps, and what a map answers."""
