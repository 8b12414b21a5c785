"""SYN: what the host waits for when it waits for a stream or a device."""
