"""An engine behind any HTTP server that speaks the OpenAI API."""
