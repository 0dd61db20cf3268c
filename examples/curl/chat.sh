#!/usr/bin/env bash
# Ask a question: first with the complete answer, then with a stream of tokens.
set -euo pipefail

ask() {
  curl --silent --show-error --fail-with-body --no-buffer "$MILLRACE_URL/v1/chat/completions" \
    -H "Authorization: Bearer $MILLRACE_KEY" -H "Content-Type: application/json" \
    -d "{\"model\": \"$MILLRACE_MODEL\", \"max_tokens\": 16, $1}"
}

ask '"messages": [{"role": "user", "content": "Why is the sky blue?"}]'
echo
ask '"messages": [{"role": "user", "content": "And at night?"}], "stream": true'
