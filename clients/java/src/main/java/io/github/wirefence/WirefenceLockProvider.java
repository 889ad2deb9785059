package io.github.wirefence;

import java.sql.SQLException;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import javax.sql.DataSource;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;

/**
 * Locks of ShedLock that are leases: the lock's name is the resource. lockAtMostFor isn't needed, since the lease
 * is renewed while the method runs, and expires after ttl if the process dies.
 */
public final class WirefenceLockProvider implements LockProvider {
    private final DataSource leases;
    private final Duration ttl;

    public WirefenceLockProvider(DataSource leases) {
        this(leases, Duration.ofSeconds(15));
    }

    public WirefenceLockProvider(DataSource leases, Duration ttl) {
        this.leases = leases;
        this.ttl = ttl;
    }

    @Override
    public Optional<SimpleLock> lock(LockConfiguration configuration) {
        Duration least = Duration.between(Instant.now(), configuration.getLockAtLeastUntil());
        try {
            Lease lease = Lease.tryAcquire(leases, configuration.getName(), ttl);
            return lease == null ? Optional.empty() : Optional.of(() -> lease.keep(least));
        } catch (SQLException e) {
            throw new IllegalStateException("cannot take the lock " + configuration.getName(), e);
        }
    }
}
