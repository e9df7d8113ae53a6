// Java 17 or newer, no packages: java Retry.java
import java.io.IOException;
import java.net.URI;
import java.net.http.*;
import java.time.Duration;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import java.util.regex.Pattern;

public class Retry {
    static final URI URL = URI.create("{{ url }}");
    static final int ATTEMPTS = {{ attempts }};
    static final long ELAPSED = {{ elapsed_ms }}, BASE = {{ base_ms }}, THROTTLED_BASE = {{ throttled_base_ms }}, CAP = {{ cap_ms }}; // ms
    static final long ATTEMPT_TIMEOUT = {{ attempt_ms }}; // better: two to three times the 99th percentile that you measure
    // Take your JSON library; the point is to read the member, and not to search the text.
    static final Pattern IN_FLIGHT = Pattern.compile("\"code\"\\s*:\\s*\"{{ in_flight_code }}\"");
    static final Set<Integer> RETRIED = Set.of({% for status in retried %}{{ status }}{% if not loop.last %}, {% endif %}{% endfor %});
    static final HttpClient CLIENT = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();

    /** null where no answer came: it may have happened all the same. */
    static HttpResponse<String> send(String key, String body, long timeout) throws InterruptedException {
        var request = HttpRequest.newBuilder(URL).timeout(Duration.ofMillis(timeout))
                .header("Authorization", "Bearer " + env("TOKEN", "your-token"))
                .header("Content-Type", "application/json").header("{{ header }}", key)
                .method("{{ method }}", HttpRequest.BodyPublishers.ofString(body)).build();
        try {
            return CLIENT.send(request, HttpResponse.BodyHandlers.ofString());
        } catch (IOException lost) {
            return null;
        }
    }

    static String create(String key, String body) throws InterruptedException {
        long deadline = System.nanoTime() + ELAPSED * 1_000_000;
        for (int retry = 0; ; ) {
            long left = (deadline - System.nanoTime()) / 1_000_000;
            if (left <= 0) throw new IllegalStateException("it may have happened; ask again with key " + key);
            var answer = send(key, body, Math.min(left, ATTEMPT_TIMEOUT));
            int status = answer == null ? 0 : answer.statusCode();
            String text = answer == null ? "" : answer.body();
            String header = answer == null ? "" : answer.headers().firstValue("Retry-After").orElse("");
            long asked = header.matches("[0-9]{1,9}") ? Long.parseLong(header) * 1000 : 0;
            boolean inFlight = status != 0 && IN_FLIGHT.matcher(text).find();
            if (!inFlight && status >= 200 && status < 300) return text;
            if (!inFlight && status != 0 && !RETRIED.contains(status)) throw new IllegalStateException(status + ": " + text);
            if (!inFlight && retry + 1 >= ATTEMPTS) throw new IllegalStateException("gave up with " + status + "; key " + key);
            // Full jitter: anything from 0 to the bound, never less than the server asked for.
            long bound = Math.min(CAP, (status == 429 ? THROTTLED_BASE : BASE) << retry);
            long pause = Math.max(ThreadLocalRandom.current().nextLong(bound + 1), asked);
            if (inFlight) pause = asked > 0 ? asked : 1000;
            if (pause >= (deadline - System.nanoTime()) / 1_000_000) {
                throw new IllegalStateException("not now; come back later with key " + key);
            }
            Thread.sleep(pause);
            if (!inFlight) retry++; // asking what the first attempt is doing costs no retry
        }
    }

    static String env(String name, String otherwise) {
        String value = System.getenv(name);
        return value == null ? otherwise : value;
    }

    public static void main(String[] args) throws InterruptedException {
        // The key belongs to the order: made once, stored with it, the same on every attempt and after a restart.
        System.out.print(create(env("KEY", "order-confirm-1042"), env("BODY", "{\"amount\": 700}")));
    }
}
