package io.github.wirefence;

import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import javax.sql.DataSource;

/**
 * The exclusive use of a resource for a limited time, taken by SQL and renewed in the background. The thread that
 * took it has it until it is closed: {@link FencedDataSource} fences what this thread writes.
 */
public final class Lease implements AutoCloseable {
    /** The lease has ended, and never comes back. */
    public static final class Lost extends IllegalStateException {
        private final String reason;

        Lost(String resource, String reason) {
            super("the lease of " + resource + " has ended: " + reason);
            this.reason = reason;
        }

        /** Returns expired (the process was stopped), unreachable (renewals failed), lost, revoked, failover or released. */
        public String reason() {
            return reason;
        }
    }

    private static final ThreadLocal<List<Lease>> HELD = ThreadLocal.withInitial(CopyOnWriteArrayList::new);

    // Returns why the lease is lost, null if it isn't.
    private static final String RENEW = """
            SELECT CASE WHEN l.former OR coalesce(l.last_token, 0) < t.token THEN 'failover'
                WHEN l.last_token > t.token AND l.holder IS NULL THEN 'revoked'
                WHEN l.last_token > t.token OR NOT wirefence.renew(t.resource, ?, make_interval(secs => ?)) THEN 'lost' END
            FROM (SELECT ?::text, ?::bigint) AS t (resource, token)
            LEFT JOIN (SELECT *, NOT pg_is_in_recovery() AND pinned_to <> wirefence.identity() AS former FROM wirefence.resource_locks) AS l
                 ON l.resource_id = t.resource""";

    private static final Duration MAX_KEEP = Duration.ofDays(366); // the longest ttl

    private final DataSource leases;
    private final String resource;
    private final Duration ttl;
    private final List<Lease> held = HELD.get(); // of the thread that took it
    private String grantId;
    private long token;
    private String fence;
    private long granted; // on the clock of now, as ends and renewAt
    private long renewAt;
    private volatile long ends;
    private volatile String lost;
    private volatile boolean failed; // the last renewal did, or waits for its answer
    private boolean asking; // a renewal waits for its answer
    private boolean over;

    private Lease(DataSource leases, String resource, Duration ttl) {
        this.leases = leases;
        this.resource = resource;
        this.ttl = ttl;
    }

    /**
     * Tries once to take a lease. It lasts for ttl without a renewal, which comes at a third of it.
     *
     * @param leases connects to the database, in a role with wirefence_issuer
     * @return null if another holder has it
     */
    public static Lease tryAcquire(DataSource leases, String resource, Duration ttl) throws SQLException {
        Lease lease = new Lease(leases, resource, ttl);
        long began = now();
        String[] grant = query(leases, new AtomicBoolean(), "SELECT grant_id, token FROM wirefence.acquire(?, ?, make_interval(secs => ?))",
                resource, ManagementFactory.getRuntimeMXBean().getName(), seconds(ttl));
        if (grant[1] == null) {
            return null;
        }
        lease.grantId = grant[0];
        lease.token = Long.parseLong(grant[1]);
        lease.fence = encode(resource) + "=" + lease.token;
        lease.confirm(began);
        lease.granted = now();
        lease.held.add(lease);
        if (lease.hasEnded()) { // the grant came too late
            lease.close();
            lease.check();
        }
        start(lease::renewUntilEnd);
        return lease;
    }

    /** Returns the fence of all leases of this thread, "" without one, or throws {@link Lost}. */
    static String current() {
        HELD.get().forEach(Lease::check);
        return HELD.get().stream().map(Lease::fence).collect(Collectors.joining(","));
    }

    public String fence() {
        return fence;
    }

    public long token() {
        return token;
    }

    /** Throws {@link Lost} if the lease has ended. Call it between the parts of long work. */
    public void check() {
        if (hasEnded()) {
            throw new Lost(resource, lost);
        }
    }

    private synchronized boolean hasEnded() {
        if (lost == null && now() - ends >= 0) {
            lost = failed ? "unreachable" : "expired";
        }
        return lost != null;
    }

    /** Returns the time until the lease ends if it isn't renewed; zero if it has ended. */
    public Duration remaining() {
        return hasEnded() ? Duration.ZERO : Duration.ofNanos(ends - now());
    }

    /** Gives the lease back. If that fails, or has no answer a second behind the lease's end, it expires by itself. */
    @Override
    public void close() {
        keep(Duration.ZERO);
    }

    /**
     * Gives the lease back, but leaves it taken until this time after its grant, if it has not ended before. A close
     * behind it does nothing: call it last in a try block, which a block that throws doesn't reach.
     *
     * @param keepFor up to 366 days
     */
    public void keep(Duration keepFor) {
        if (keepFor.compareTo(MAX_KEEP) > 0) {
            throw new IllegalArgumentException("a lease is kept for up to 366 days, not for " + keepFor);
        }
        held.remove(this);
        synchronized (this) {
            if (over) {
                return;
            }
            over = true;
        }
        boolean interrupted = Thread.interrupted(); // which would leave the lease taken
        try {
            giveBack(keepFor);
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private void giveBack(Duration keepFor) {
        Duration left;
        synchronized (this) {
            try {
                while (asking && !keepFor.isZero() && !hasEnded()) { // it would shorten the time
                    sleepUntil(ends);
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
            left = hasEnded() ? Duration.ZERO : keepFor.minusNanos(now() - granted);
            lost = lost == null ? "released" : lost;
            notifyAll();
        }
        long patience = Math.max(ends - now(), 1_000_000_000L);
        try {
            if (left.toMillis() <= 0) {
                ask(patience, "SELECT wirefence.release(?, ?)", resource, grantId);
            } else {
                ask(patience, "SELECT wirefence.renew(?, ?, make_interval(secs => ?))", resource, grantId, seconds(left));
            }
        } catch (SQLException e) {
            warn("cannot release lease of ", e);
        }
    }

    private void renewUntilEnd() {
        try {
            while (true) {
                synchronized (this) {
                    while (!hasEnded() && now() - renewAt < 0) {
                        sleepUntil(renewAt);
                    }
                    if (hasEnded()) { // one that has ended doesn't come back
                        return;
                    }
                    asking = true;
                }
                renew();
            }
        } catch (InterruptedException e) {
            // Nobody interrupts this thread.
        }
    }

    // A try takes half of the time that is left, so that another fits in.
    private void renew() {
        long began = now();
        String cause = null;
        boolean failure = false;
        failed = true;
        try {
            cause = ask((ends - began) / 2, RENEW, grantId, seconds(ttl), resource, token)[0];
        } catch (SQLException e) { // the next may succeed; without one the lease ends by the clock
            warn("cannot renew lease of ", e);
            failure = true;
        }
        synchronized (this) {
            asking = false;
            notifyAll();
            if (hasEnded()) {
                return;
            }
            failed = failure;
            lost = cause;
            if (failure) {
                renewAt = now() + ttl.toNanos() / 20;
            } else {
                confirm(began);
            }
        }
    }

    // It ends here a fifth of its time before another can have it, counted from before the request.
    private void confirm(long began) {
        ends = began + ttl.toNanos() / 5 * 4;
        renewAt = began + ttl.toNanos() / 3;
    }

    private synchronized void sleepUntil(long then) throws InterruptedException {
        TimeUnit.NANOSECONDS.timedWait(this, then - now());
    }

    // Asks in a thread, since a driver may not look up from a server that is silent. It is left to itself then.
    private String[] ask(long nanos, String sql, Object... values) throws SQLException {
        AtomicBoolean givenUp = new AtomicBoolean();
        FutureTask<String[]> question = new FutureTask<>(() -> query(leases, givenUp, sql, values));
        start(question);
        try {
            return question.get(nanos, TimeUnit.NANOSECONDS);
        } catch (ExecutionException e) { // of pools and drivers also unchecked ones
            throw new SQLException(e.getCause().getMessage(), e.getCause());
        } catch (TimeoutException e) {
            givenUp.set(true);
            throw new SQLException("no answer within " + TimeUnit.NANOSECONDS.toMillis(nanos) + " ms");
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new SQLException("interrupted", e);
        }
    }

    private static void start(Runnable work) {
        Thread thread = new Thread(work, "wirefence lease");
        thread.setDaemon(true);
        thread.start();
    }

    private static final Path UPTIME = Path.of("/proc/uptime");
    private static final double BEGAN = gained();
    private static double suspended; // in seconds

    // A clock in nanoseconds that runs on while the machine is suspended, as System.nanoTime doesn't under Linux. The
    // uptime is in hundredths of seconds, and read later, so gains below a second don't count.
    private static synchronized long now() {
        double gained = gained() - BEGAN;
        if (gained > suspended + 1) {
            suspended = gained;
        }
        return System.nanoTime() + (long) (suspended * 1e9);
    }

    private static double gained() {
        double awake = System.nanoTime() / 1e9;
        try {
            String uptime = Files.readString(UPTIME);
            return Double.parseDouble(uptime.substring(0, uptime.indexOf(' '))) - awake;
        } catch (IOException e) { // not under Linux
            return 0;
        }
    }

    private void warn(String what, SQLException e) {
        System.getLogger("wirefence").log(System.Logger.Level.WARNING, what + resource + ": " + e.getMessage());
    }

    private static double seconds(Duration time) {
        return time.toMillis() / 1000.0;
    }

    private static String encode(String resource) {
        StringBuilder text = new StringBuilder();
        for (byte b : resource.getBytes(StandardCharsets.UTF_8)) {
            boolean plain = b > 0 && (Character.isLetterOrDigit(b) || "_.:/-".indexOf(b) >= 0);
            text.append(plain ? String.valueOf((char) b) : String.format("%%%02X", b));
        }
        return text.toString();
    }

    private static String[] query(DataSource source, AtomicBoolean givenUp, String sql, Object... values) throws SQLException {
        try (Connection db = source.getConnection(); PreparedStatement statement = db.prepareStatement(sql)) {
            if (givenUp.get()) { // a pool had no connection for so long
                throw new SQLException("the answer is not awaited any more");
            }
            for (int i = 0; i < values.length; i++) {
                statement.setObject(i + 1, values[i]);
            }
            try (ResultSet row = statement.executeQuery()) {
                row.next();
                String[] columns = new String[row.getMetaData().getColumnCount()];
                for (int i = 0; i < columns.length; i++) {
                    columns[i] = row.getString(i + 1);
                }
                if (!db.getAutoCommit()) {
                    db.commit();
                }
                return columns;
            }
        }
    }
}
