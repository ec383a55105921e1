"""The simulated vLLM: speculation-aware step costs on an event clock, served with vLLM's own flags, API and metrics."""
