"""`millrace chat`: a conversation with a model."""
