"""The demo: a simulated GPU fleet on this machine through a day of load, decided by the real operator."""
