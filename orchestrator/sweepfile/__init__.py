"""From a sweep file to a question: strictly read, with every error naming file, line, key, value and remedy."""
