package net.javacrumbs.shedlock.core;

/** The one method of ShedLock's interface that has no default. */
public interface SimpleLock {
    void unlock();
}
