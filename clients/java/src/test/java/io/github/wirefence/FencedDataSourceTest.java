package io.github.wirefence;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNotNull;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertSame;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.StringReader;
import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Statement;
import java.time.Duration;
import java.time.Instant;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import javax.sql.DataSource;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import org.junit.Before;
import org.junit.Test;
import org.postgresql.PGConnection;
import org.postgresql.ds.PGSimpleDataSource;

/**
 * clients/conformance runs these on a real server: DATABASE_URL is of an application's role, which may write the
 * guarded tables totals and reports; LEASES_URL of a role with wirefence_issuer.
 */
public class FencedDataSourceTest {
    private static final String NIGHTLY = "nightly ä%'"; // guards totals; reports guards reports
    private static final Duration TTL = Duration.ofSeconds(15);

    private final DataSource plain = source("DATABASE_URL");
    private final DataSource fenced = FencedDataSource.of(plain);
    private final DataSource leases = source("LEASES_URL");

    private static DataSource source(String variable) {
        PGSimpleDataSource source = new PGSimpleDataSource();
        source.setUrl(System.getenv(variable));
        return source;
    }

    @Before
    public void nobodyHasALease() throws Exception {
        value(leases, "SELECT wirefence.revoke('" + NIGHTLY.replace("'", "''") + "'), wirefence.revoke('reports')");
    }

    private interface Work {
        void run() throws Exception;
    }

    @Test
    public void aLeaseIsExclusiveAndRenewed() throws Exception {
        try (Lease lease = take(NIGHTLY, Duration.ofSeconds(6))) {
            String first = value(leases, "SELECT max(expires_at) FROM wirefence.leases");
            assertNull(Lease.tryAcquire(leases, NIGHTLY, TTL));
            eventually(() -> value(leases, "SELECT max(expires_at) > '" + first + "'::timestamptz + interval '3 seconds' FROM wirefence.leases").equals("t"));
            lease.check();
            insert("late");
        }
        try (Lease lease = take(NIGHTLY, TTL)) {
            assertTrue(lease.fence(), lease.fence().matches("nightly%20%C3%A4%25%27=\\d+"));
        }
    }

    @Test
    public void statementsOutsideTransactionsAreFenced() throws Exception {
        try (Lease lease = take(NIGHTLY, TTL); Connection db = fenced.getConnection(); Statement statement = db.createStatement()) {
            insert("alone");
            statement.setFetchSize(1);
            try (ResultSet rows = statement.executeQuery("INSERT INTO totals (host) VALUES ('a'), ('b'), ('c') RETURNING id")) {
                assertTrue(rows.next() && rows.next() && rows.next());
            }
            assertRefused("42P01", () -> statement.execute("SELECT FROM nothing"));
            assertTrue(db.getAutoCommit());
            assertSame(db, statement.getConnection());
        }
        assertRefused("WF002", () -> insert("without"));
    }

    @Test
    public void transactionsAreFenced() throws Exception {
        try (Lease lease = take(NIGHTLY, TTL); Connection db = fenced.getConnection();
                PreparedStatement insert = db.prepareStatement("INSERT INTO totals (host) VALUES (?)")) {
            db.setAutoCommit(false);
            Savepoint before = db.setSavepoint();
            insert.setString(1, "undone");
            insert.execute();
            db.rollback(before);
            insert.setString(1, "one");
            insert.addBatch();
            insert.executeBatch();
            db.commit();
            insert.setString(1, "two");
            insert.execute();
            db.rollback();
            insert.execute();
            db.commit();
            try (Statement statement = db.createStatement()) {
                statement.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE");
            }
            insert.execute();
            lease.close(); // the transaction is fenced to its end
            insert.execute();
            db.commit();
            assertRefused("WF002", insert::execute);
            db.rollback();
        }
    }

    @Test
    public void rowsOfAResultSetAreFenced() throws Exception {
        try (Lease lease = take(NIGHTLY, TTL); Connection db = fenced.getConnection();
                Statement statement = db.createStatement(ResultSet.TYPE_SCROLL_INSENSITIVE, ResultSet.CONCUR_UPDATABLE)) {
            for (boolean alone : new boolean[] {true, false}) {
                insert("row");
                db.setAutoCommit(alone);
                try (ResultSet rows = statement.executeQuery("SELECT id, host FROM totals WHERE host = 'row'")) {
                    if (!alone) {
                        db.commit();
                    }
                    assertTrue(rows.next());
                    rows.updateString("host", "changed");
                    rows.updateRow();
                    rows.moveToInsertRow();
                    rows.updateString("host", "inserted");
                    rows.insertRow();
                    rows.first();
                    rows.deleteRow();
                    assertSame(db, rows.getStatement().getConnection());
                }
            }
            db.commit();
        }
        assertEquals("2", value(plain, "SELECT count(*) FROM totals WHERE host IN ('row', 'changed', 'inserted')"));
    }

    @Test
    public void whatLeadsBackToTheConnectionIsFenced() throws Exception {
        try (Lease lease = take(NIGHTLY, TTL); Connection db = fenced.getConnection()) {
            assertSame(db, db.getMetaData().getConnection());
            try (ResultSet tables = db.getMetaData().getTables(null, null, "totals", null)) {
                assertSame(db, tables.getStatement().getConnection());
            }
        }
    }

    /** Of the table of ways past a hook: `unwrap`, so `CopyManager` and large objects; a `COMMIT` in a text. */
    @Test
    public void waysPastTheHookAreRefused() throws Exception {
        try (Lease lease = take(NIGHTLY, TTL); Connection db = fenced.getConnection(); Statement statement = db.createStatement()) {
            PGConnection driver = db.unwrap(PGConnection.class);
            assertRefused("WF002", () -> driver.getCopyAPI().copyIn("COPY totals (host) FROM STDIN", new StringReader("copied\n")));
            db.setAutoCommit(false);
            statement.execute("INSERT INTO totals DEFAULT VALUES");
            statement.execute("COMMIT");
            assertRefused("WF002", () -> statement.execute("INSERT INTO totals DEFAULT VALUES"));
            db.rollback();
        }
    }

    @Test
    public void aLeaseClosedByAnotherThreadIsOver() throws Exception {
        CompletableFuture.runAsync(take(NIGHTLY, TTL)::close).get();
        assertRefused("WF002", () -> insert("behind it"));
    }

    @Test
    public void aCloseWaitsForNothingThatHangs() throws Exception {
        long began = System.nanoTime();
        try (Connection stuck = leases.getConnection()) {
            stuck.setAutoCommit(false);
            try (Lease lease = take(NIGHTLY, Duration.ofSeconds(5)); Statement statement = stuck.createStatement()) {
                statement.execute("SELECT wirefence.revoke('" + NIGHTLY.replace("'", "''") + "')");
                eventually(() -> !value(leases, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%wirefence.renew%'").equals("0"));
            }
            Duration took = Duration.ofNanos(System.nanoTime() - began);
            assertTrue(took.toString(), took.toMillis() < 6500);
        }
    }

    @Test
    public void aSlowAcquireIsRenewedInTime() throws Exception {
        try (Connection writer = fenced.getConnection(); Statement statement = writer.createStatement()) {
            writer.setAutoCommit(false);
            try (Lease lease = take(NIGHTLY, TTL)) {
                statement.execute("INSERT INTO totals DEFAULT VALUES");
            }
            long began = System.nanoTime();
            try (Lease lease = take(NIGHTLY, Duration.ofSeconds(9))) { // preempt_after ends the writer
                assertTrue(System.nanoTime() - began > 4_000_000_000L);
                eventually(() -> System.nanoTime() - began > 8_000_000_000L);
                lease.check();
            }
        }
    }

    @Test
    public void otherThreadsHaveNoFence() throws Exception {
        try (Lease lease = take(NIGHTLY, TTL)) {
            ExecutionException e = assertThrows(ExecutionException.class, () -> CompletableFuture.supplyAsync(() -> {
                try {
                    return insert("other");
                } catch (SQLException failed) {
                    throw new IllegalStateException(failed.getSQLState());
                }
            }).get());
            assertEquals("WF002", e.getCause().getMessage());
        }
    }

    @Test
    public void leasesNest() throws Exception {
        try (Lease outer = take(NIGHTLY, TTL); Connection db = fenced.getConnection(); Statement statement = db.createStatement()) {
            db.setAutoCommit(false);
            statement.execute("INSERT INTO totals DEFAULT VALUES");
            try (Lease inner = take("reports", TTL)) {
                statement.execute("INSERT INTO reports DEFAULT VALUES");
                statement.execute("INSERT INTO totals DEFAULT VALUES");
                db.commit();
            }
            statement.execute("INSERT INTO totals DEFAULT VALUES");
            assertRefused("WF002", () -> statement.execute("INSERT INTO reports DEFAULT VALUES"));
            db.rollback();
        }
    }

    @Test
    public void aFormerHolderIsRefused() throws Exception {
        try (Lease lease = take(NIGHTLY, Duration.ofSeconds(9))) {
            insert("before");
            nobodyHasALease();
            assertRefused("WF001", () -> insert("stale"));
            String told = awaitEnd(lease);
            assertTrue(told, told.contains("revoked"));
        }
        assertEquals("0", value(plain, "SELECT count(*) FROM totals WHERE host = 'stale'"));
    }

    @Test
    public void withoutRenewalsItEndsInTimeForEver() throws Exception {
        AtomicInteger tries = new AtomicInteger();
        AtomicBoolean works = new AtomicBoolean(true);
        DataSource failing = (DataSource) Proxy.newProxyInstance(getClass().getClassLoader(), new Class<?>[] {DataSource.class}, (proxy, method, args) -> {
            tries.incrementAndGet();
            if (!works.get()) {
                throw new IllegalStateException("no way"); // as a pool that was closed
            }
            return method.invoke(leases, args);
        });
        long began = System.nanoTime();
        try (Lease lease = Lease.tryAcquire(failing, NIGHTLY, Duration.ofSeconds(10))) {
            works.set(false);
            awaitEnd(lease);
            assertTrue(System.nanoTime() - began < 10_000_000_000L);
            assertTrue(tries.get() > 2);
            assertThrows(Lease.Lost.class, () -> insert("too late"));
            works.set(true); // and the next renewal succeeds
            eventually(() -> awaitEnd(lease).contains("not renewed in time"));
        }
        assertEquals("0", value(plain, "SELECT count(*) FROM totals WHERE host = 'too late'"));
    }

    @Test
    public void aBlockThatEndsWellKeepsTheLease() throws Exception {
        long began = System.nanoTime();
        try (Lease lease = take(NIGHTLY, TTL)) {
            lease.keep(Duration.ofSeconds(3));
            assertThrows(Lease.Lost.class, lease::check);
        }
        assertNull(Lease.tryAcquire(leases, NIGHTLY, TTL));
        eventually(() -> {
            try (Lease next = Lease.tryAcquire(leases, NIGHTLY, TTL)) {
                return next != null;
            }
        });
        Duration kept = Duration.ofNanos(System.nanoTime() - began);
        assertTrue(kept.toString(), kept.toSeconds() >= 3 && kept.compareTo(TTL) < 0);
        try (Lease lease = take(NIGHTLY, Duration.ofSeconds(3))) {
            lease.keep(Duration.ofMinutes(1)); // far beyond its ttl
        }
        Thread.sleep(3100);
        assertNull(Lease.tryAcquire(leases, NIGHTLY, TTL));
    }

    @Test
    public void aFailedBlockKeepsNothing() throws Exception {
        assertThrows(IllegalStateException.class, () -> {
            try (Lease lease = take(NIGHTLY, TTL)) {
                if (lease != null) {
                    throw new IllegalStateException("mine");
                }
                lease.keep(Duration.ofMinutes(1));
            }
        });
        try (Lease lease = take(NIGHTLY, TTL)) {
            Thread.sleep(20);
            lease.keep(Duration.ofMillis(10)); // the time is over
        }
        try (Lease lease = take(NIGHTLY, Duration.ofSeconds(9))) {
            nobodyHasALease();
            awaitEnd(lease);
            lease.keep(Duration.ofMinutes(1));
        }
        try (Lease lease = take(NIGHTLY, TTL)) {
            assertThrows(IllegalArgumentException.class, () -> lease.keep(Duration.ofDays(367)));
        }
        take(NIGHTLY, TTL).close();
    }

    @Test
    public void locksOfShedLockAreLeases() throws Exception {
        WirefenceLockProvider locks = new WirefenceLockProvider(leases);
        SimpleLock lock = locks.lock(new LockConfiguration(Instant.now(), NIGHTLY, Duration.ofSeconds(60), Duration.ofSeconds(60))).orElseThrow();
        insert("under the lock");
        assertTrue(locks.lock(new LockConfiguration(Instant.now(), NIGHTLY, TTL, Duration.ZERO)).isEmpty());
        lock.unlock();
        assertRefused("WF002", () -> insert("unlocked"));
        // lockAtLeastFor
        assertTrue(locks.lock(new LockConfiguration(Instant.now(), NIGHTLY, TTL, Duration.ZERO)).isEmpty());
        Duration left = Duration.between(Instant.now(), Instant.parse(value(leases, "SELECT to_char(max(expires_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') FROM wirefence.leases")));
        assertTrue(left.toString(), left.toSeconds() <= 60 && left.compareTo(TTL) > 0);
    }

    private Lease take(String resource, Duration ttl) throws SQLException {
        Lease lease = Lease.tryAcquire(leases, resource, ttl);
        assertNotNull("it is held", lease);
        return lease;
    }

    // Returns what the lease says at its end.
    private static String awaitEnd(Lease lease) {
        return assertThrows(Lease.Lost.class, () -> eventually(() -> {
            lease.check();
            return false;
        })).getMessage();
    }

    private boolean insert(String host) throws SQLException {
        try (Connection db = fenced.getConnection(); PreparedStatement insert = db.prepareStatement("INSERT INTO totals (host) VALUES (?)")) {
            insert.setString(1, host);
            return insert.execute();
        }
    }

    private static String value(DataSource source, String sql) throws SQLException {
        try (Connection db = source.getConnection(); Statement statement = db.createStatement(); ResultSet row = statement.executeQuery(sql)) {
            row.next();
            return row.getString(1);
        }
    }

    private static void assertRefused(String state, Work work) {
        assertEquals(state, assertThrows(SQLException.class, work::run).getSQLState());
    }

    private interface Condition {
        boolean holds() throws Exception;
    }

    private static void eventually(Condition condition) throws Exception {
        for (long began = System.nanoTime(); !condition.holds(); Thread.sleep(20)) {
            assertTrue("it doesn't become so", System.nanoTime() - began < 60_000_000_000L);
        }
    }
}
