"""Patches and manifests that the tool wrote, a folder a release."""
