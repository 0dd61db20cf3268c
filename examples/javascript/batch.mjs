// Run a batch: upload a file of requests, wait, and print one answer a line.
import { setTimeout as sleep } from "node:timers/promises";
import OpenAI, { toFile } from "openai";

const { MILLRACE_URL, MILLRACE_KEY, MILLRACE_MODEL } = process.env;
const client = new OpenAI({ baseURL: `${MILLRACE_URL}/v1`, apiKey: MILLRACE_KEY });

const lines = [0, 1, 2].map((number) => ({
  custom_id: `question-${number}`,
  method: "POST",
  url: "/v1/chat/completions",
  body: { model: MILLRACE_MODEL, messages: [{ role: "user", content: `What is ${number}?` }] },
}));
const content = lines.map((line) => JSON.stringify(line) + "\n").join("");
const file = await client.files.create({
  file: await toFile(Buffer.from(content), "questions.jsonl"),
  purpose: "batch",
});
let job = await client.batches.create({
  input_file_id: file.id,
  endpoint: "/v1/chat/completions",
  completion_window: "24h",
});
while (!["completed", "failed", "expired", "cancelled"].includes(job.status)) {
  await sleep(200);
  job = await client.batches.retrieve(job.id);
}

console.log(`${job.id} ${job.status}`);
if (job.output_file_id) {
  const output = await (await client.files.content(job.output_file_id)).text();
  for (const text of output.trimEnd().split("\n")) {
    const line = JSON.parse(text);
    console.log(`${line.custom_id}: ${line.response.body.choices[0].message.content}`);
  }
}
