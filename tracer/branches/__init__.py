"""Recognise the branches on pipeline stages."""
