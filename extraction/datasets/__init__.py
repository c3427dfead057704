"""Datasets as people have them: files and folders of records, conversations, masks."""
