"""Run a batch: upload a file of requests, wait, and print one answer a line."""

import json
import os
import time

from openai import OpenAI

client = OpenAI(base_url=os.environ["MILLRACE_URL"] + "/v1", api_key=os.environ["MILLRACE_KEY"])
model = os.environ["MILLRACE_MODEL"]

lines = [
    {
        "custom_id": f"question-{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": model, "messages": [{"role": "user", "content": f"What is {number}?"}]},
    }
    for number in range(3)
]
content = "".join(json.dumps(line) + "\n" for line in lines).encode()
file = client.files.create(file=("questions.jsonl", content), purpose="batch")
job = client.batches.create(
    input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
)
while job.status not in {"completed", "failed", "expired", "cancelled"}:
    time.sleep(0.2)
    job = client.batches.retrieve(job.id)

print(f"{job.id} {job.status}")
if job.output_file_id:
    # Lines of bytes: as text, an answer that holds U+2028 would be taken for two lines.
    for line_bytes in client.files.content(job.output_file_id).content.splitlines():
        line = json.loads(line_bytes)
        answer = line["response"]["body"]["choices"][0]["message"]["content"]
        print(f"{line['custom_id']}: {answer}")
