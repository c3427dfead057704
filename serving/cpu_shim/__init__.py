"""Put first on PYTHONPATH, this folder lets SGLang import and run without a GPU and without its GPU packages."""
