"""The vector store ``sqlite``: one file on one host, no server; numpy compares the vectors."""
