"""The vector store ``sqlite``: one file on one host, without a server; numpy compares the vectors."""
