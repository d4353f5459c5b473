"""What is trained, and on which data."""
