"""What a person sees: report trees, tables and progress; the only importer of rich besides the commands."""
