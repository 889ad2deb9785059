//! The connection on which a lease is taken, renewed and released.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Config, Row, Socket};

use crate::Error;

/// How long a request may take that nobody waits for.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

type Opening = Pin<Box<dyn Future<Output = Result<Connection, tokio_postgres::Error>> + Send>>;

/// Opens connections, each with a task of its own.
pub(crate) type Connect = Arc<dyn Fn() -> Opening + Send + Sync>;

pub(crate) struct Connection {
    client: tokio_postgres::Client,
    _open: oneshot::Sender<Infallible>, // its task ends behind it, however silent the server is
}

pub(crate) fn connector<T>(config: Config, tls: T) -> Connect
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    Arc::new(move || {
        let (config, tls) = (config.clone(), tls.clone());
        Box::pin(async move {
            let (client, connection) = config.connect(tls).await?;
            let (_open, dropped) = oneshot::channel::<Infallible>();
            tokio::spawn(async move {
                let cut = async {
                    let _ = dropped.await;
                    sleep(GRACE).await;
                };
                tokio::select! {
                    _ = connection => {}
                    () = cut => {}
                }
            });
            Ok(Connection { client, _open })
        })
    })
}

/// The requests of one lease. One that is dropped stays ahead of the next on the connection.
pub(crate) struct Session {
    connect: Connect,
    connection: Option<Connection>,
}

impl Session {
    pub(crate) fn new(connect: Connect) -> Session {
        Session { connect, connection: None }
    }

    /// Has the next request open a connection.
    pub(crate) fn cut(&mut self) {
        self.connection = None;
    }

    /// Returns the row that a statement returns, within a time.
    pub(crate) async fn ask(
        &mut self,
        sql: &str,
        values: &[(&(dyn ToSql + Sync), Type)],
        patience: Duration,
    ) -> Result<Row, Error> {
        match timeout(patience, self.query(sql, values)).await {
            Ok(answer) => answer.map_err(Error::from),
            Err(_) => Err(Error::Unavailable(None)),
        }
    }

    async fn query(&mut self, sql: &str, values: &[(&(dyn ToSql + Sync), Type)]) -> Result<Row, tokio_postgres::Error> {
        if let Some(used) = &self.connection {
            match used.client.query_typed_one(sql, values).await {
                Err(_) if used.client.is_closed() => {}
                answer => return answer,
            }
        }
        let connection = self.connection.insert((self.connect)().await?);
        connection.client.query_typed_one(sql, values).await
    }
}
