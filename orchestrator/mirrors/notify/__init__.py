"""Messages about a run, sent through Apprise: what is worth one, when, and how it is sent."""
