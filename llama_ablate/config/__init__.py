"""User input: registries, YAML with line numbers, the schema, presets, plug-ins."""
