"""What the CPU engine puts first on the server's path."""
