"""Find and explain every place of the hidden-state pipeline in an SGLang tree."""
