# Python 3, standard library only. With tenacity or urllib3's Retry the numbers are the same.
import http.client, json, os, random, time, urllib.error, urllib.request

URL = "{{ url }}"
TOKEN = os.environ.get("TOKEN", "your-token")
ATTEMPTS, ELAPSED = {{ attempts }}, {{ elapsed_ms / 1000 }}
ATTEMPT_TIMEOUT = {{ attempt_ms / 1000 }}  # better: two to three times the 99th percentile that you measure
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
    except (OSError, http.client.HTTPException):  # cut off in the middle is no answer either
        return None, 0, ""


def code_of(text):
    try:
        return json.loads(text).get("code")
    except (ValueError, AttributeError):
        return None


def create(key, body):
    deadline, retry = time.monotonic() + ELAPSED, 0
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"it may have happened; ask again with key {key}")
        status, asked, text = send(key, body, min(left, ATTEMPT_TIMEOUT))
        in_flight = code_of(text) == "{{ in_flight_code }}"
        if not in_flight and status is not None and status < 300:
            return text
        if not in_flight and status is not None and status not in RETRIED:
            raise RuntimeError(f"{status}: {text}")
        if not in_flight and retry + 1 >= ATTEMPTS:
            raise RuntimeError(f"gave up with {status}; key {key}")
        # Full jitter: anything from 0 to the bound, never less than the server asked for.
        bound = min(CAP, (THROTTLED_BASE if status == 429 else BASE) * 2**retry)
        pause = asked or 1 if in_flight else max(random.uniform(0, bound), asked)
        if pause >= deadline - time.monotonic():
            raise TimeoutError(f"not now; come back later with key {key}")
        time.sleep(pause)
        retry += 0 if in_flight else 1  # asking what the first attempt is doing costs no retry


# The key belongs to the order: made once, stored with it, the same on every attempt and after a restart.
key = os.environ.get("KEY", "order-confirm-1042")
print(create(key, json.loads(os.environ.get("BODY", '{"amount": 700}'))), end="")
