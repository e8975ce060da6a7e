"""What a person looks at: the report of a run, `steep browse`, and the recall of retrievers."""
