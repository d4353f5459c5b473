"""The detector over existing curves, and how often early stopping was wrong."""
