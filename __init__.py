"""Trace, patch, serve and extract the auxiliary hidden states of SGLang."""

__version__ = "0.1.0"
