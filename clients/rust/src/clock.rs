//! A clock that nobody sets, and that runs on while the machine is suspended where there is one.

use std::time::Duration;

/// A wait stands still in a suspended machine.
const GLANCE: Duration = Duration::from_secs(1);

#[cfg(target_os = "linux")]
pub(crate) fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn now() -> Duration {
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    START.elapsed()
}

pub(crate) async fn sleep_until(time: Duration) {
    loop {
        let left = time.saturating_sub(now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(GLANCE)).await;
    }
}
