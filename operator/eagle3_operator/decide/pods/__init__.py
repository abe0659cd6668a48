"""A pod in trouble: what keeps it from being started (``waiting``), and why a server's start failed (``diagnosis``)."""
