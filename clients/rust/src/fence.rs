use std::fmt;

use tokio_postgres::types::Type;

const APPLY: &str = include_str!("sql/apply.sql");

/// The text that carries the tokens of leases: `orders=34`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fence(String);

impl Fence {
    pub(crate) fn new(resource: &str, token: i64) -> Fence {
        let mut text = String::new();
        for byte in resource.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b':' | b'/' | b'-' => text.push(byte.into()),
                _ => text += &format!("%{byte:02X}"),
            }
        }
        Fence(format!("{text}={token}"))
    }

    /// The fence of both leases, for a transaction that needs them.
    pub fn and(&self, other: &Fence) -> Fence {
        Fence(format!("{self},{other}"))
    }

    /// The text, as the setting `wirefence.token` takes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The fence as a comment, which only a proxy reads: append it to a statement.
    pub fn comment(&self) -> String {
        format!("/*wirefence.token='{self}'*/")
    }

    /// Fences a transaction to its end, and checks it. Call it first in the transaction, ahead of its savepoints: the
    /// rollback of a savepoint takes back what was applied behind it.
    ///
    /// Fails if the token is stale: see [`is_stale`](crate::is_stale).
    pub async fn apply(&self, transaction: &tokio_postgres::Transaction<'_>) -> Result<(), tokio_postgres::Error> {
        transaction.query_typed(APPLY, &[(&self.0, Type::TEXT)]).await.map(drop)
    }

    /// Does as [`apply`](Fence::apply) does, for sqlx.
    #[cfg(feature = "sqlx")]
    pub async fn apply_sqlx(&self, transaction: &mut sqlx::Transaction<'_, sqlx::Postgres>) -> Result<(), sqlx::Error> {
        let query = sqlx::query(APPLY).persistent(false).bind(&self.0);
        query.execute(&mut **transaction).await.map(drop)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
