"""From the ledger to an experiment tracker: a mirror that can be deleted and written again."""
