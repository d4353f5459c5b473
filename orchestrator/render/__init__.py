"""Pictures and files made from the ledger, which can be made again at any time."""
