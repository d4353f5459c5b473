"""What a notebook uses: `load`, `run`, and the results of a sweep."""
