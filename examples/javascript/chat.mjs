// Ask a question: first with the complete answer, then with a stream of tokens.
import OpenAI from "openai";

const { MILLRACE_URL, MILLRACE_KEY, MILLRACE_MODEL: model } = process.env;
const client = new OpenAI({ baseURL: `${MILLRACE_URL}/v1`, apiKey: MILLRACE_KEY });

const answer = await client.chat.completions.create({
  model,
  messages: [{ role: "user", content: "Why is the sky blue?" }],
  max_tokens: 16,
});
console.log(`whole: ${answer.choices[0].message.content}`);

const stream = await client.chat.completions.create({
  model,
  messages: [{ role: "user", content: "And at night?" }],
  max_tokens: 16,
  stream: true,
  stream_options: { include_usage: true },
});
process.stdout.write("streamed: ");
for await (const chunk of stream) {
  process.stdout.write(chunk.choices[0]?.delta.content ?? "");
  if (chunk.usage) {
    console.log(`\ntokens: ${chunk.usage.completion_tokens}`);
  }
}
