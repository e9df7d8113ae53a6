"""One Stripe call for each line of standard input, through the published SDK as it is.

Usage: stripe_calls.py BASE_URL TIMEOUT_SECONDS. A line in is {"account": ...}, a line out is what the caller got.
Keys and retries are the SDK's own; only the address and the timeout are set, as its documentation shows.
"""

import json
import sys

import stripe

stripe.api_base = sys.argv[1]
stripe.default_http_client = stripe.new_default_http_client(timeout=float(sys.argv[2]))

for line in sys.stdin:
    account = json.loads(line)["account"]
    try:
        intent = stripe.PaymentIntent.create(amount=4200, currency="eur", api_key=account)
        result = {"id": getattr(intent, "id", None)}
    except stripe.StripeError as error:
        # Some error classes leave `code` empty; the error object that came over the wire has it.
        code = error.code or (error.error.code if error.error else None)
        result = {"error": type(error).__name__, "status": error.http_status, "code": code}
    print(json.dumps(result), flush=True)
