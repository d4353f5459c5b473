"""From the ledger to an experiment tracker: a mirror that can be lost and written again."""
