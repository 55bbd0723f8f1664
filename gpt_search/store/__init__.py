"""The only writers of files: records, study databases, tables."""
