"""The simulated engine and the replay of fleets: speculation-aware costs on an event clock."""
