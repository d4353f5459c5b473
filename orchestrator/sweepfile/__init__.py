"""From a sweep file to a `Sweep`: strictly read, with every error naming file, line, key, value and remedy."""
