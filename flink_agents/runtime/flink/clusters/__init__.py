"""Jobs on a cluster: how they are submitted, followed, listed and stopped."""
