#!/usr/bin/env bash
# Run a batch: upload a file of requests, wait, and print the output and the error file.
set -euo pipefail

call() { curl --silent --show-error --fail-with-body -H "Authorization: Bearer $MILLRACE_KEY" "$@"; }
field() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]] or "")' "$1"; }

requests=$(mktemp)
trap 'rm -f "$requests"' EXIT
for number in 0 1 2; do
  printf '{"custom_id": "question-%d", "method": "POST", "url": "/v1/chat/completions", "body": %s}\n' \
    "$number" "{\"model\": \"$MILLRACE_MODEL\", \"messages\": [{\"role\": \"user\", \"content\": \"What is $number?\"}]}"
done > "$requests"

file=$(call "$MILLRACE_URL/v1/files" -F "file=@$requests;filename=questions.jsonl" -F purpose=batch | field id)
job=$(call "$MILLRACE_URL/v1/batches" -H "Content-Type: application/json" -d "{
  \"input_file_id\": \"$file\", \"endpoint\": \"/v1/chat/completions\", \"completion_window\": \"24h\"
}" | field id)
while true; do
  answer=$(call "$MILLRACE_URL/v1/batches/$job")
  status=$(field status <<< "$answer")
  case $status in completed | failed | expired | cancelled) break ;; esac
  sleep 0.2
done

echo "$job $status"
for name in output_file_id error_file_id; do
  file=$(field "$name" <<< "$answer") # empty: no item ended so
  [[ -z $file ]] || call "$MILLRACE_URL/v1/files/$file/content"
done
[[ $status == completed ]]
