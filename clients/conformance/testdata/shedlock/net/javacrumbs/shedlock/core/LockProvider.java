package net.javacrumbs.shedlock.core;

import java.util.Optional;

/** The signature of ShedLock's interface, for systems without its jar. */
public interface LockProvider {
    Optional<SimpleLock> lock(LockConfiguration configuration);
}
