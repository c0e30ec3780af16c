"""Files on disk: crash-safe writing, strict JSON, names that are safe as file names."""
