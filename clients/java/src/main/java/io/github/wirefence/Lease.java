package io.github.wirefence;

import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
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

    private static final ThreadLocal<List<Lease>> HELD = ThreadLocal.withInitial(ArrayList::new);

    private static final Duration MAX_KEEP = Duration.ofDays(366); // the longest ttl

    private final DataSource leases;
    private final String resource;
    private final Duration ttl;
    private final Thread keeper = new Thread(this::keep, "wirefence lease");
    private String grantId;
    private String fence;
    private long granted; // on the clock of System.nanoTime, as ends
    private volatile long ends;
    private volatile String lost;
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
        lease.ends = began + lease.allowed();
        lease.granted = System.nanoTime();
        lease.keeper.setDaemon(true);
        lease.keeper.start();
        HELD.get().add(lease);
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
            throw new Lost("the lease of " + resource + " has ended" + (lost == null ? "" : ": " + lost));
        }
    }

    private boolean hasEnded() {
        return lost != null || System.nanoTime() - ends >= 0;
    }

    /** Gives the lease back. If that fails, it expires by itself. */
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
        HELD.get().remove(this);
        synchronized (this) { // a renewal under way would come behind this
            if (over) {
                return;
            }
            Duration left = hasEnded() ? Duration.ZERO : keepFor.minusNanos(System.nanoTime() - granted);
            over = true;
            lost = "it was given back";
            keeper.interrupt();
            try {
                if (left.toMillis() <= 0) {
                    query(leases, "SELECT wirefence.release(?, ?)", resource, grantId);
                } else {
                    query(leases, "SELECT wirefence.renew(?, ?, make_interval(secs => ?))", resource, grantId, seconds(left));
                }
            } catch (SQLException e) {
                warn("cannot release lease of ", e);
            }
        }
    }

    private void keep() {
        long pause = ttl.toMillis() / 3;
        try {
            while (lost == null) {
                Thread.sleep(pause);
                pause = ttl.toMillis() / (renew() ? 3 : 20);
            }
        } catch (InterruptedException e) {
            // It was given back.
        }
    }

    private synchronized boolean renew() {
        if (lost != null) {
            return false;
        }
        long began = System.nanoTime();
        try {
            if (!"t".equals(query(leases, "SELECT wirefence.renew(?, ?, make_interval(secs => ?))", resource, grantId, seconds(ttl))[0])) {
                lost = "another holder has it, or it was revoked";
            } else if (System.nanoTime() - ends < 0) {
                ends = began + allowed();
            } else { // one that has ended doesn't come back
                lost = "it was not renewed in time";
            }
            return true;
        } catch (SQLException e) { // the next may succeed; without one the lease ends by the clock
            warn("cannot renew lease of ", e);
            return false;
        }
    }

    // It ends here a fifth of its time before another can have it, counted from before the request.
    private long allowed() {
        return ttl.toNanos() / 5 * 4;
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
