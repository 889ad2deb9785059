package io.github.wirefence;

import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
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
import java.util.stream.Collectors;
import javax.sql.DataSource;

/**
 * The exclusive use of a resource for a limited time, taken by SQL and renewed in the background. The thread that
 * took it has it until it is closed: {@link FencedDataSource} fences what this thread writes.
 */
public final class Lease implements AutoCloseable {
    /** The lease has ended, and never comes back. */
    public static final class Lost extends IllegalStateException {
        Lost(String message) {
            super(message);
        }
    }

    private static final ThreadLocal<List<Lease>> HELD = ThreadLocal.withInitial(CopyOnWriteArrayList::new);

    private static final Duration MAX_KEEP = Duration.ofDays(366); // the longest ttl

    private final DataSource leases;
    private final String resource;
    private final Duration ttl;
    private final List<Lease> held = HELD.get(); // of the thread that took it
    private String grantId;
    private String fence;
    private long granted; // on the clock of System.nanoTime, as ends and renewAt
    private long renewAt;
    private volatile long ends;
    private volatile String lost;
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
        long began = System.nanoTime();
        String[] grant = query(leases, "SELECT grant_id, token FROM wirefence.acquire(?, ?, make_interval(secs => ?))",
                resource, ManagementFactory.getRuntimeMXBean().getName(), seconds(ttl));
        if (grant[1] == null) {
            return null;
        }
        lease.grantId = grant[0];
        lease.fence = encode(resource) + "=" + grant[1];
        lease.confirm(began);
        lease.granted = System.nanoTime();
        lease.held.add(lease);
        if (lease.hasEnded()) { // the grant came too late
            lease.close();
            lease.check();
        }
        start(lease::keep);
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

    /** Throws {@link Lost} if the lease has ended. Call it between the parts of long work. */
    public void check() {
        if (hasEnded()) {
            throw new Lost("the lease of " + resource + " has ended: " + (lost == null ? "it was not renewed in time" : lost));
        }
    }

    private boolean hasEnded() {
        return lost != null || System.nanoTime() - ends >= 0;
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
        Duration left;
        synchronized (this) {
            if (over) {
                return;
            }
            over = true;
            try {
                while (asking && !keepFor.isZero() && !hasEnded()) { // it would shorten the time
                    sleepUntil(ends);
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
            left = hasEnded() ? Duration.ZERO : keepFor.minusNanos(System.nanoTime() - granted);
            lost = lost == null ? "it was given back" : lost;
            notifyAll();
        }
        long patience = Math.max(ends - System.nanoTime(), 1_000_000_000L);
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

    private void keep() {
        try {
            while (true) {
                synchronized (this) {
                    while (!hasEnded() && System.nanoTime() - renewAt < 0) {
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
        long began = System.nanoTime();
        String answer = null;
        try {
            answer = ask((ends - began) / 2, "SELECT wirefence.renew(?, ?, make_interval(secs => ?))", resource, grantId, seconds(ttl))[0];
        } catch (SQLException e) { // the next may succeed; without one the lease ends by the clock
            warn("cannot renew lease of ", e);
        }
        synchronized (this) {
            asking = false;
            notifyAll();
            if (answer == null) {
                renewAt = System.nanoTime() + ttl.toNanos() / 20;
            } else if (!answer.equals("t")) {
                lost = lost == null ? "another holder has it, or it was revoked" : lost;
            } else if (!hasEnded()) {
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
        TimeUnit.NANOSECONDS.timedWait(this, then - System.nanoTime());
    }

    // Asks in a thread, since a driver may not look up from a server that is silent. It is left to itself then.
    private String[] ask(long nanos, String sql, Object... values) throws SQLException {
        FutureTask<String[]> asking = new FutureTask<>(() -> query(leases, sql, values));
        start(asking);
        try {
            return asking.get(nanos, TimeUnit.NANOSECONDS);
        } catch (ExecutionException e) { // of pools and drivers also unchecked ones
            throw new SQLException(e.getCause().getMessage(), e.getCause());
        } catch (TimeoutException e) {
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

    private static String[] query(DataSource source, String sql, Object... values) throws SQLException {
        try (Connection db = source.getConnection(); PreparedStatement statement = db.prepareStatement(sql)) {
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
