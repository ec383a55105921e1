"""From laws to decisions: which arm at which load, and when to change it."""
