# Python 3, standard library only. With tenacity or urllib3's Retry the numbers are the same.
import json, os, random, sys, time, urllib.error, urllib.request

URL = "{{ url }}"
TOKEN = os.environ.get("TOKEN", "your-token")
ATTEMPTS, ELAPSED = {{ attempts }}, {{ elapsed_ms / 1000 }}
BASE, THROTTLED_BASE, CAP = {{ base_ms / 1000 }}, {{ throttled_base_ms / 1000 }}, {{ cap_ms / 1000 }}
RETRIED = { {%- for status in retried %}{{ status }}{% if not loop.last %}, {% endif %}{% endfor -%} }


def send(key, body, timeout):
    """Status, Retry-After in seconds and text; (None, 0, "") where no answer came: it may have happened all the same."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", "{{ header }}": key}
    request = urllib.request.Request(URL, json.dumps(body).encode(), headers, method="{{ method }}")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, 0, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        asked = refusal.headers.get("Retry-After", "0")
        return refusal.code, float(asked) if asked.isdigit() else 0, refusal.read().decode()
    except OSError:
        return None, 0, ""


def create(key, body):
    deadline, retry = time.monotonic() + ELAPSED, 0
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"it may have happened; ask again with key {key}")
        status, asked, text = send(key, body, left)
        if "{{ in_flight_code }}" in text:
            time.sleep(asked or 1)  # the first attempt is still running; this costs no retry
            continue
        if status is not None and status < 300:
            return text
        if status is not None and status not in RETRIED:
            raise RuntimeError(f"{status}: {text}")
        if retry + 1 >= ATTEMPTS:
            raise RuntimeError(f"gave up with {status}; key {key}")
        # Full jitter: anything from 0 to the bound, never less than the server asked for.
        bound = min(CAP, (THROTTLED_BASE if status == 429 else BASE) * 2**retry)
        time.sleep(max(random.uniform(0, bound), asked))
        retry += 1


# The key belongs to the order: made once, stored with it, the same on every attempt and after a restart.
key = os.environ.get("KEY", "order-confirm-1042")
print(create(key, json.loads(os.environ.get("BODY", '{"amount": 700}'))), end="")
