"""The ground floor: axes, errors, files, processes and intervals."""
