"""API keys: authentication, refresh, revocation during long requests, and recorded acts."""
