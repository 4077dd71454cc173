"""Parts of a sink: it loses no transaction, and knows the size of records."""
