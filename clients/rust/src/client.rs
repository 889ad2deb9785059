use std::fmt;
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Config, NoTls, Socket};

use crate::session::{connector, Connect, Session};
use crate::{lease, Error, Lease};

/// How a client takes and keeps its leases.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long a request may take. Default 30 s.
    pub timeout: Duration,
    /// How long a lease is held at most. Default a day.
    pub max_hold: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options { timeout: Duration::from_secs(30), max_hold: Duration::from_secs(86_400) }
    }
}

/// Takes leases by SQL, in a role with `wirefence_issuer`. Each has a connection of its own while it is held.
#[derive(Clone)]
pub struct Client {
    connect: Connect,
    options: Options,
}

impl Client {
    /// Connects to the database once, so that a wrong URL fails here. The URL is read as tokio-postgres reads it; its
    /// connections have no TLS.
    pub async fn connect(url: &str, options: Options) -> Result<Client, Error> {
        Client::connect_tls(url, NoTls, options).await
    }

    /// Connects with TLS, by any crate that makes it for tokio-postgres.
    pub async fn connect_tls<T>(url: &str, tls: T, options: Options) -> Result<Client, Error>
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let mut config: Config = url.parse().map_err(|_| Error::Url)?;
        if config.get_application_name().is_none() {
            config.application_name("wirefence lease");
        }
        let connect = connector(config, tls);
        timeout(options.timeout, connect()).await.map_err(|_| Error::Unavailable(None))??;
        Ok(Client { connect, options })
    }

    /// Wins the lease of a resource, and waits so long for another holder, and for a database that doesn't serve. The
    /// lease lasts for `ttl`, up to 366 days, without a renewal. Call it outside of a transaction that the holder of the
    /// resource waits for. Dropped, it gives the lease back.
    pub async fn acquire(&self, resource: &str, holder: &str, ttl: Duration, wait: Duration) -> Result<Lease, Error> {
        lease::acquire(Session::new(self.connect.clone()), self.options.clone(), resource, holder, ttl, wait).await
    }

    /// Tries once to win the lease, and fails with [`Error::Held`] if another holder has it.
    pub async fn try_acquire(&self, resource: &str, holder: &str, ttl: Duration) -> Result<Lease, Error> {
        self.acquire(resource, holder, ttl, Duration::ZERO).await
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("options", &self.options).finish_non_exhaustive()
    }
}
