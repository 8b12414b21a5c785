"""EVT: what an event says, and what the host gets by waiting for it."""
