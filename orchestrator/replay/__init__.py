"""Looking back: the detector over curves that exist already, and how often stopping early was wrong."""
