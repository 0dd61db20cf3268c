#!/usr/bin/env bash
# Turn texts into vectors.
set -euo pipefail

curl --silent --show-error --fail-with-body "$MILLRACE_URL/v1/embeddings" \
  -H "Authorization: Bearer $MILLRACE_KEY" -H "Content-Type: application/json" \
  -d "{\"model\": \"$MILLRACE_MODEL\", \"input\": [\"A man is eating food.\", \"Someone eats a meal.\"]}"
echo
