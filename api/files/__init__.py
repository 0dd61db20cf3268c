"""Files: routes, uploads and downloads."""
