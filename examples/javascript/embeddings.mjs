// Turn texts into vectors and say how alike they are.
import OpenAI from "openai";

const { MILLRACE_URL, MILLRACE_KEY, MILLRACE_MODEL } = process.env;
const client = new OpenAI({ baseURL: `${MILLRACE_URL}/v1`, apiKey: MILLRACE_KEY });

const texts = ["A man is eating food.", "Someone eats a meal.", "The queue of the printer is full."];
const answer = await client.embeddings.create({ model: MILLRACE_MODEL, input: texts });
const [first, ...others] = answer.data.map((item) => item.embedding);
for (const [index, vector] of others.entries()) {
  const dot = first.reduce((sum, value, place) => sum + value * vector[place], 0);
  const alike = dot / Math.hypot(...first) / Math.hypot(...vector);
  console.log(`${alike >= 0 ? "+" : ""}${alike.toFixed(3)} ${texts[index + 1]}`);
}
