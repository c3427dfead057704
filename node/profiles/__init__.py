"""Starting points for node profiles, one TOML file a kind of machine."""
