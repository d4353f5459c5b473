"""The mechanisms by which training becomes unstable, each a function of a trial's evidence."""
