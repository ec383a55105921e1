"""Pictures and pages of a profile: what an engineer shows to others."""
