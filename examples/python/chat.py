"""Ask a question: first with the complete answer, then with a stream of tokens."""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ["MILLRACE_URL"] + "/v1", api_key=os.environ["MILLRACE_KEY"])
model = os.environ["MILLRACE_MODEL"]

answer = client.chat.completions.create(
    model=model, messages=[{"role": "user", "content": "Why is the sky blue?"}], max_tokens=16
)
print(f"whole: {answer.choices[0].message.content}")

stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "And at night?"}],
    max_tokens=16,
    stream=True,
    stream_options={"include_usage": True},
)
print("streamed: ", end="")
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage:
        print(f"\ntokens: {chunk.usage.completion_tokens}")
