"""Why a trial became unstable, and what to change."""
