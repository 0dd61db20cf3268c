// Embed texts and print their cosine similarity.
import OpenAI from "openai";

const { MILLRACE_URL, MILLRACE_KEY, MILLRACE_MODEL } = process.env;
const client = new OpenAI({ baseURL: `${MILLRACE_URL}/v1`, apiKey: MILLRACE_KEY });

const texts = ["A man is eating food.", "Someone eats a meal.", "The queue of the printer is full."];
const answer = await client.embeddings.create({ model: MILLRACE_MODEL, input: texts });
const [first, ...others] = answer.data.map((item) => item.embedding);
for (const [position, vector] of others.entries()) {
  const dot = first.reduce((sum, value, index) => sum + value * vector[index], 0);
  const similarity = dot / Math.hypot(...first) / Math.hypot(...vector);
  console.log(`${similarity >= 0 ? "+" : ""}${similarity.toFixed(3)} ${texts[position + 1]}`);
}
