"""What a user may write: registries, YAML with line numbers, sections, presets, plugins."""
