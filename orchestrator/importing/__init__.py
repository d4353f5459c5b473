"""Results that someone else made: a table, a folder of logs or a tracker's store -> the ledger of a sweep."""
