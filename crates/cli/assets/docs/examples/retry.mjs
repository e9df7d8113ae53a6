// Node 18 or newer, no packages.
import { setTimeout as sleep } from "node:timers/promises";

const URL_ = "{{ url }}";
const TOKEN = process.env.TOKEN ?? "your-token";
const ATTEMPTS = {{ attempts }}, ELAPSED = {{ elapsed_ms }}; // milliseconds
const ATTEMPT_TIMEOUT = {{ attempt_ms }}; // better: two to three times the 99th percentile that you measure
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

function codeOf(text) {
  try {
    return JSON.parse(text)?.code;
  } catch {
    return undefined;
  }
}

export async function create(key, body) {
  const deadline = performance.now() + ELAPSED;
  for (let retry = 0; ; ) {
    const left = deadline - performance.now();
    if (left <= 1) throw new Error(`it may have happened; ask again with key ${key}`);
    const { status, asked, text } = await send(key, body, Math.ceil(Math.min(left, ATTEMPT_TIMEOUT)));
    const inFlight = codeOf(text) === "{{ in_flight_code }}";
    if (!inFlight && status >= 200 && status < 300) return text;
    if (!inFlight && status !== 0 && !RETRIED.has(status)) throw new Error(`${status}: ${text}`);
    if (!inFlight && retry + 1 >= ATTEMPTS) throw new Error(`gave up with ${status}; key ${key}`);
    // Full jitter: anything from 0 to the bound, never less than the server asked for.
    const bound = Math.min(CAP, (status === 429 ? THROTTLED_BASE : BASE) * 2 ** retry);
    const pause = inFlight ? asked || 1000 : Math.max(Math.random() * bound, asked);
    if (pause >= deadline - performance.now()) throw new Error(`not now; come back later with key ${key}`);
    await sleep(pause);
    retry += inFlight ? 0 : 1; // asking what the first attempt is doing costs no retry
  }
}

// The key belongs to the order: made once, stored with it, the same on every attempt and after a restart.
const key = process.env.KEY ?? "order-confirm-1042";
process.stdout.write(await create(key, process.env.BODY ?? '{"amount": 700}'));
