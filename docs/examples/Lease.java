// A lease taken by SQL; docs/howto-spring.md shows its use.

import java.time.Duration;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.springframework.jdbc.core.JdbcTemplate;

/** A lease of a resource, which the thread that took it has until it is closed. */
public final class Lease implements AutoCloseable {
    private static final ThreadLocal<Lease> CURRENT = new ThreadLocal<>();

    private final JdbcTemplate db;
    private final String resource;
    private final String grantId;
    private final String fence;
    private final Duration ttl;
    private final ScheduledExecutorService renewals;
    private volatile long ends; // on the clock of System.nanoTime
    private volatile boolean lost;

    private Lease(JdbcTemplate db, String resource, Map<String, Object> grant, Duration ttl, long began) {
        this.db = db;
        this.resource = resource;
        this.grantId = (String) grant.get("grant_id");
        this.fence = resource + "=" + grant.get("token");
        this.ttl = ttl;
        extend(began);
        renewals = Executors.newSingleThreadScheduledExecutor(task -> {
            Thread thread = new Thread(task, "lease of " + resource);
            thread.setDaemon(true);
            return thread;
        });
        long third = ttl.toMillis() / 3;
        renewals.scheduleWithFixedDelay(this::renew, third, third, TimeUnit.MILLISECONDS);
        CURRENT.set(this);
    }

    /** Returns null if another has the lease. The resource's name has letters, digits and _.:/- only. */
    public static Lease tryAcquire(JdbcTemplate db, String resource, String holder, Duration ttl) {
        if (!resource.matches("[A-Za-z0-9_.:/-]{1,255}")) {
            throw new IllegalArgumentException("resource " + resource);
        }
        if (CURRENT.get() != null) {
            throw new IllegalStateException("this thread has the lease " + CURRENT.get().fence);
        }
        long began = System.nanoTime();
        Map<String, Object> grant = db.queryForMap(
                "SELECT grant_id, token FROM wirefence.acquire(?, ?, make_interval(secs => ?))", resource, holder, seconds(ttl));
        return grant.get("token") == null ? null : new Lease(db, resource, grant, ttl, began);
    }

    public static Lease current() {
        return CURRENT.get();
    }

    public String fence() {
        return fence;
    }

    /** Throws if the lease has ended. Call it between the parts of long work. */
    public void check() {
        if (lost || System.nanoTime() - ends >= 0) {
            throw new IllegalStateException("the lease of " + resource + " has ended");
        }
    }

    private static double seconds(Duration ttl) {
        return ttl.toMillis() / 1000.0;
    }

    // A fifth of the time before another can have it, counted from before the request.
    private void extend(long began) {
        ends = began + ttl.toNanos() / 5 * 4;
    }

    private void renew() {
        long began = System.nanoTime();
        try {
            if (db.queryForObject("SELECT wirefence.renew(?, ?, make_interval(secs => ?))", Boolean.class, resource, grantId, seconds(ttl))) {
                extend(began);
            } else {
                lost = true;
            }
        } catch (RuntimeException e) {
            System.err.println("renewal: " + e.getMessage()); // the next may succeed
        }
    }

    @Override
    public void close() {
        CURRENT.remove();
        renewals.shutdownNow();
        try {
            db.queryForObject("SELECT wirefence.release(?, ?)", Boolean.class, resource, grantId);
        } catch (RuntimeException e) {
            System.err.println("release: " + e.getMessage()); // it ends by itself
        }
    }
}
