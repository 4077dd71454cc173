"""Records what runs do, hands the records to sinks, and reads them again."""
