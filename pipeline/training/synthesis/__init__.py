"""Questions from documents: evidence paths, drafts of a language model, and their verification."""
