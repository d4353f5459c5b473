"""Early warning: how likely a run is to become unstable within the next steps, from readings of its telemetry."""
