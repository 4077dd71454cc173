"""The records of durable steps: how commands show, copy and remove them."""
