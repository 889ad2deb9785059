import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.github.wirefence.Lease;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import org.postgresql.ds.PGSimpleDataSource;

/**
 * Does what the cases say with the client for Java. Each line of its input is a step, and each line of its output what
 * came of it.
 */
public class Driver {
    private static final class Held extends Exception {}

    private static final class Fails extends Exception {}

    private final PGSimpleDataSource leases = source(System.getenv("API").replace("leases@", "") + "&user=leases&connectTimeout=10");
    private Lease lease;
    private long began;

    private static PGSimpleDataSource source(String url) {
        PGSimpleDataSource source = new PGSimpleDataSource();
        source.setUrl("jdbc:postgresql" + url.substring(url.indexOf(':')));
        return source;
    }

    private static Duration seconds(JsonNode step, String field, double otherwise) {
        return Duration.ofMillis((long) (1000 * step.path(field).asDouble(otherwise)));
    }

    // Tries until the wait is over.
    private Lease take(JsonNode step) throws Exception {
        long until = System.nanoTime() + seconds(step, "wait", 0).toNanos();
        while (true) {
            began = System.nanoTime();
            try {
                Lease taken = Lease.tryAcquire(leases, step.get("resource").asText(), seconds(step, "ttl", 15));
                if (taken != null) {
                    return taken;
                }
                if (System.nanoTime() - until >= 0) {
                    throw new Held();
                }
            } catch (SQLException e) {
                if (System.nanoTime() - until >= 0) {
                    throw e;
                }
            }
            Thread.sleep(Math.max(0, Math.min(200, (until - System.nanoTime()) / 1_000_000)));
        }
    }

    private Map<String, Object> does(JsonNode step) throws Exception {
        switch (step.get("do").asText()) {
            case "acquire":
                lease = take(step);
                return Map.of("granted", true, "token", "" + lease.token(), "fence", lease.fence(), "comment", comment(), "remaining", remaining());
            case "check":
                return check();
            case "await_end":
                long until = began + seconds(step, "within", 0).toNanos();
                while (remaining() > 0 && System.nanoTime() - until < 0) {
                    Thread.sleep(10);
                }
                Map<String, Object> ended = new LinkedHashMap<>(check());
                ended.put("at", (System.nanoTime() - began) / 1e9);
                return ended;
            case "remaining":
                return Map.of("remaining", remaining());
            case "release":
                lease.close();
                return Map.of("released", true);
            case "keep":
                lease.keep(seconds(step, "keep_for", 0));
                return Map.of("given_up", true);
            case "run":
                try (Lease block = take(step)) {
                    Thread.sleep(seconds(step, "works", 0).toMillis());
                    if (step.path("fails").asBoolean()) {
                        throw new Fails();
                    }
                    block.keep(seconds(step, "keep_for", 0));
                } catch (Fails e) {
                    // as it was told to
                }
                return Map.of("ran", true);
            case "write":
                write(step.path("via").asText("comment"));
                return Map.of("written", true);
            default:
                throw new IllegalArgumentException(step.toString());
        }
    }

    private String comment() {
        return "/*wirefence.token='" + lease.fence() + "'*/";
    }

    private double remaining() {
        return lease.remaining().toNanos() / 1e9;
    }

    private Map<String, Object> check() {
        try {
            lease.check();
            return Map.of("held", true);
        } catch (Lease.Lost e) {
            return Map.of("held", false, "cause", e.reason());
        }
    }

    private void write(String via) throws SQLException {
        PGSimpleDataSource source = source(System.getenv("DATABASE_URL").replace("app@", "") + "&user=app");
        if (via.equals("options")) {
            source.setOptions("-c wirefence.token=" + lease.fence());
        }
        try (Connection db = source.getConnection(); Statement statement = db.createStatement()) {
            db.setAutoCommit(false);
            if (via.equals("set_local")) {
                statement.execute("SET LOCAL wirefence.token = '" + lease.fence() + "'");
            }
            statement.execute("INSERT INTO orders (item) VALUES ('book')" + (via.equals("comment") ? comment() : ""));
            db.commit();
        }
    }

    private static Map<String, Object> failure(Exception error) {
        if (error instanceof Held) {
            return Map.of("error", "held");
        }
        if (error instanceof Lease.Lost lost) {
            return Map.of("error", "lost", "cause", lost.reason());
        }
        String state = error instanceof SQLException failed && failed.getSQLState() != null ? failed.getSQLState() : "";
        return switch (state) {
            case "WF001" -> Map.of("error", "StaleToken", "sqlstate", state, "condition", "stale_fencing_token");
            case "22023" -> Map.of("error", "invalid");
            default -> Map.of("error", "unavailable");
        };
    }

    public static void main(String[] args) throws Exception {
        ObjectMapper json = new ObjectMapper();
        Driver driver = new Driver();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            long started = System.nanoTime();
            Map<String, Object> outcome;
            try {
                outcome = new LinkedHashMap<>(driver.does(json.readTree(line)));
            } catch (Exception e) {
                e.printStackTrace();
                outcome = new LinkedHashMap<>(failure(e));
            }
            outcome.put("took", (System.nanoTime() - started) / 1e9);
            System.out.println(json.writeValueAsString(outcome));
        }
    }
}
