// Node 18 or newer, no packages.
import { setTimeout as sleep } from "node:timers/promises";

const URL_ = "{{ url }}";
const TOKEN = process.env.TOKEN ?? "your-token";
const ATTEMPTS = {{ attempts }}, ELAPSED = {{ elapsed_ms }}; // milliseconds
const BASE = {{ base_ms }}, THROTTLED_BASE = {{ throttled_base_ms }}, CAP = {{ cap_ms }};
const RETRIED = new Set([{% for status in retried %}{{ status }}{% if not loop.last %}, {% endif %}{% endfor %}]);

// Status, Retry-After in ms and text; status 0 where no answer came: it may have happened all the same.
async function send(key, body, timeout) {
  try {
    const answer = await fetch(URL_, {
      method: "{{ method }}",
      headers: { Authorization: `Bearer ${TOKEN}`, "Content-Type": "application/json", "{{ header }}": key },
      body,
      signal: AbortSignal.timeout(timeout),
    });
    const asked = Number(answer.headers.get("retry-after")) * 1000;
    return { status: answer.status, asked: Number.isFinite(asked) ? asked : 0, text: await answer.text() };
  } catch {
    return { status: 0, asked: 0, text: "" };
  }
}

export async function create(key, body) {
  const deadline = performance.now() + ELAPSED;
  for (let retry = 0; ; ) {
    const left = deadline - performance.now();
    if (left <= 1) throw new Error(`it may have happened; ask again with key ${key}`);
    const { status, asked, text } = await send(key, body, Math.ceil(left));
    if (text.includes("{{ in_flight_code }}")) {
      await sleep(asked || 1000); // the first attempt is still running; this costs no retry
      continue;
    }
    if (status >= 200 && status < 300) return text;
    if (status !== 0 && !RETRIED.has(status)) throw new Error(`${status}: ${text}`);
    if (retry + 1 >= ATTEMPTS) throw new Error(`gave up with ${status}; key ${key}`);
    // Full jitter: anything from 0 to the bound, never less than the server asked for.
    const bound = Math.min(CAP, (status === 429 ? THROTTLED_BASE : BASE) * 2 ** retry);
    await sleep(Math.max(Math.random() * bound, asked));
    retry += 1;
  }
}

// The key belongs to the order: made once, stored with it, the same on every attempt and after a restart.
const key = process.env.KEY ?? "order-confirm-1042";
process.stdout.write(await create(key, process.env.BODY ?? '{"amount": 700}'));
