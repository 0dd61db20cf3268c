"""Embed texts and print their cosine similarity."""

import math
import os

from openai import OpenAI

client = OpenAI(base_url=os.environ["MILLRACE_URL"] + "/v1", api_key=os.environ["MILLRACE_KEY"])

texts = ["A man is eating food.", "Someone eats a meal.", "The queue of the printer is full."]
answer = client.embeddings.create(model=os.environ["MILLRACE_MODEL"], input=texts)
first, *others = [item.embedding for item in answer.data]
for text, vector in zip(texts[1:], others, strict=True):
    dot = sum(a * b for a, b in zip(first, vector, strict=True))
    similarity = dot / math.hypot(*first) / math.hypot(*vector)
    print(f"{similarity:+.3f} {text}")
