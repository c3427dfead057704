"""What runs inside the SGLang server. Copied into the patched tree as `sglang.srt.auxtap`."""
