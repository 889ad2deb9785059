use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

/// Why a lease has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// It was not renewed: the process or the runtime stood still.
    Expired,
    /// Its renewals failed, or had no answer.
    Unreachable,
    /// Another holder has it.
    Lost,
    Revoked,
    /// The database was promoted or restored.
    Failover,
    /// It was held for [`Options::max_hold`](crate::Options::max_hold).
    MaxHold,
    /// It was given back.
    Released,
}

/// A lease has ended, and never comes back.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Lost {
    pub resource: String,
    pub token: i64,
    pub cause: Cause,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lease of \"{}\" with token {} has ended: {:?}", self.resource, self.token, self.cause)
    }
}

impl StdError for Lost {}

/// Why a lease was not acquired, renewed or released.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Another holder has it, for so long if it isn't renewed. Both are unknown while it is being granted.
    Held { resource: String, by: Option<String>, lasts: Option<Duration> },
    /// The answer came behind the deadline of the lease.
    Lost(Lost),
    /// The database didn't answer in time, or didn't serve the request, which it may have carried out.
    Unavailable(Option<tokio_postgres::Error>),
    /// The database refused the request, or the connection: a retry doesn't help.
    Refused(tokio_postgres::Error),
    /// The URL is none. Its text is left out, since it can have a password.
    Url,
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Error {
        let passes = match error.code() {
            Some(state) => ["08", "25", "40", "53", "55", "57", "58", "XX"].contains(&&state.code()[..2]),
            None => error.is_closed() || error.source().is_some_and(|e| e.is::<std::io::Error>()),
        };
        if passes {
            Error::Unavailable(Some(error))
        } else {
            Error::Refused(error)
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Held { resource, by, .. } => {
                write!(f, "\"{resource}\" is held by {}", by.as_deref().unwrap_or("another, which is being granted it"))
            }
            Error::Lost(lost) => lost.fmt(f),
            Error::Unavailable(None) => f.write_str("no answer from the database in time"),
            Error::Unavailable(Some(error)) => write!(f, "no answer from the database: {error}"),
            Error::Refused(error) => write!(f, "the database refused: {error}"),
            Error::Url => f.write_str("tokio-postgres can't read the URL of the database"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Unavailable(Some(error)) | Error::Refused(error) => Some(error),
            Error::Lost(lost) => Some(lost),
            _ => None,
        }
    }
}

/// Why PostgreSQL or the proxy refused a statement for its fence. Don't retry it with the same token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// A later holder has superseded the token: stop the work.
    StaleToken,
    /// A guard or the proxy's policy requires a fence, and the statement has none.
    TokenRequired,
    /// The token was never granted, or comes from another lock service.
    UnknownToken,
    /// The text is not a fence.
    MalformedToken,
    /// A token for one transaction was presented again.
    TokenReused,
    /// The statement can't run under its fence.
    CannotBeFenced,
    /// The sidecar doesn't have its lease.
    LeaseNotHeld,
    /// Resources must be declared, and this one isn't.
    ResourceUnknown,
}

const REFUSALS: [(Refusal, &str, &str); 8] = [
    (Refusal::StaleToken, "WF001", "stale_fencing_token"),
    (Refusal::TokenRequired, "WF002", "fencing_token_required"),
    (Refusal::UnknownToken, "WF003", "unknown_fencing_token"),
    (Refusal::MalformedToken, "WF004", "malformed_fencing_token"),
    (Refusal::TokenReused, "WF005", "fencing_token_reused"),
    (Refusal::CannotBeFenced, "WF006", "statement_cannot_be_fenced"),
    (Refusal::LeaseNotHeld, "WF007", "lease_not_held"),
    (Refusal::ResourceUnknown, "WF008", "unknown_fenced_resource"),
];

impl Refusal {
    /// The refusal that an error is, or wraps; `None` if it is none. It knows tokio-postgres' and sqlx' errors.
    pub fn of(error: &(dyn StdError + 'static)) -> Option<Refusal> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(state) = sqlstate(error) {
                return REFUSALS.iter().find(|(_, known, _)| *known == state).map(|(refusal, ..)| *refusal);
            }
            next = error.source();
        }
        None
    }

    pub fn sqlstate(self) -> &'static str {
        REFUSALS[self as usize].1
    }

    pub fn condition(self) -> &'static str {
        REFUSALS[self as usize].2
    }
}

fn sqlstate(error: &(dyn StdError + 'static)) -> Option<String> {
    #[cfg(feature = "sqlx")]
    if let Some(error) = error.downcast_ref::<sqlx::Error>() {
        return error.as_database_error()?.code().map(Into::into);
    }
    Some(error.downcast_ref::<tokio_postgres::Error>()?.code()?.code().into())
}

/// Whether PostgreSQL refused a statement since a later holder has superseded its token.
pub fn is_stale(error: &(dyn StdError + 'static)) -> bool {
    Refusal::of(error) == Some(Refusal::StaleToken)
}
