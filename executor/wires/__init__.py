"""What carries messages between ranks."""
