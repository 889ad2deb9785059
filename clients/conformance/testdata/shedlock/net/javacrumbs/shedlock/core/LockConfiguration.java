package net.javacrumbs.shedlock.core;

import java.time.Duration;
import java.time.Instant;

/** What the lock provider and its test use of ShedLock's class. */
public class LockConfiguration {
    private final String name;
    private final Instant lockAtLeastUntil;

    public LockConfiguration(Instant createdAt, String name, Duration lockAtMostFor, Duration lockAtLeastFor) {
        this.name = name;
        this.lockAtLeastUntil = createdAt.plus(lockAtLeastFor);
    }

    public String getName() {
        return name;
    }

    public Instant getLockAtLeastUntil() {
        return lockAtLeastUntil;
    }
}
