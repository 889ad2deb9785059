//! Leases with fencing tokens of [Wirefence](https://github.com/wirefence/wirefence), taken by SQL, and fences for the
//! transactions of tokio-postgres and, with the feature `sqlx`, of sqlx.
//!
//! ```no_run
//! # async fn settle(db: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! let client = wirefence::Client::connect("postgres://leases@db/app", Default::default()).await?;
//! let lease = client.acquire("orders", "worker-1", Duration::from_secs(15), Duration::from_secs(60)).await?;
//! let transaction = db.transaction().await?;
//! lease.fence().apply(&transaction).await?;
//! transaction.execute("INSERT INTO orders (item) VALUES ('book')", &[]).await?;
//! transaction.commit().await?;
//! lease.release().await?;
//! # Ok(())
//! # }
//! ```

mod client;
mod clock;
mod error;
mod fence;
mod lease;
mod session;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use client::{Client, Options};
pub use error::{is_stale, Cause, Error, Lost, Refusal};
pub use fence::Fence;
pub use lease::Lease;
