"""Where SGLang trees come from and where patches go."""
