#!/bin/sh
# Needs curl. The key belongs to the order: made once, and the same on every attempt, also after a restart of this script.
set -u
TOKEN=${TOKEN:-your-token}
KEY=${KEY:-order-confirm-1042}
BODY=${BODY:-'{"amount": 700}'}
answer=$(mktemp); headers=$(mktemp); trap 'rm -f "$answer" "$headers"' EXIT

deadline=$(( $(date +%s) + {{ (elapsed_ms / 1000) | int }} ))
retry=0
while :; do
    left=$(( deadline - $(date +%s) ))
    [ "$left" -gt 0 ] || { echo "deadline: it may have happened; ask again with key $KEY" >&2; exit 1; }
    limit=$(( left < {{ (attempt_ms / 1000) | int }} ? left : {{ (attempt_ms / 1000) | int }} ))
    # 000 where no whole answer came: then it may have happened all the same.
    status=$(curl -s -o "$answer" -D "$headers" -w '%{http_code}' --max-time "$limit" \
        -X {{ method }} '{{ url }}' -H "Authorization: Bearer $TOKEN" \
        -H 'Content-Type: application/json' -H "{{ header }}: $KEY" -d "$BODY") || status=000
    asked=$(sed -n 's/^[Rr]etry-[Aa]fter: *\([0-9]*\).*/\1/p' "$headers" | head -n 1)
    if grep -Eq '"code": ?"{{ in_flight_code }}"' "$answer"; then
        [ "${asked:-1}" -lt "$left" ] || { echo "not now; come back later with key $KEY" >&2; exit 1; }
        sleep "${asked:-1}"; continue                       # the first attempt is still running; this costs no retry
    fi
    case $status in
        2??) cat "$answer"; exit 0 ;;
        000{% for status in retried %}|{{ status }}{% endfor %}) ;;               # worth another attempt
        *) cat "$answer" >&2; exit 1 ;;
    esac
    [ $(( retry + 1 )) -lt {{ attempts }} ] || { echo "gave up with $status; key $KEY" >&2; exit 1; }
    [ "${asked:-0}" -lt "$left" ] || { echo "not now; come back later with key $KEY" >&2; exit 1; }
    # Full jitter: anything from 0 to the bound, never less than the server asked for.
    base={{ base_ms }}; [ "$status" = 429 ] && base={{ throttled_base_ms }}
    bound=$(( base << retry )); [ "$bound" -le {{ cap_ms }} ] || bound={{ cap_ms }}
    sleep "$(awk -v bound="$bound" -v asked="${asked:-0}" -v seed="$$$retry" \
        'BEGIN { srand(seed); wait = rand() * bound / 1000; print (wait > asked ? wait : asked) }')"
    retry=$(( retry + 1 ))
done
