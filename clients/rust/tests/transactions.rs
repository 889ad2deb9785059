//! clients/conformance runs these on a real server: DATABASE_URL is of an application's role, which may write the guarded
//! tables totals and reports; LEASES_URL of a role with wirefence_issuer.

use std::env::var;
use std::error::Error;
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::{IsolationLevel, NoTls};
use wirefence::{is_stale, Cause, Client, Fence, Lease, Refusal};

const NIGHTLY: &str = "nightly ä%'"; // guards totals; reports guards reports
const INSERT: &str = "INSERT INTO totals (host) VALUES ('one')";
const TWICE: &str = "INSERT INTO totals (id) SELECT min(id) FROM totals"; // fails
const TTL: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(60);

type Outcome = Result<(), Box<dyn Error>>;

async fn open(name: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&var(name).unwrap(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn take(resource: &str) -> Lease {
    let client = Client::connect(&var("LEASES_URL").unwrap(), Default::default()).await.unwrap();
    client.acquire(resource, "test", TTL, PATIENCE).await.unwrap()
}

async fn revoke(resource: &str) {
    open("LEASES_URL").await.execute("SELECT wirefence.revoke($1)", &[&resource]).await.unwrap();
}

async fn by_tokio_postgres(fence: &Fence) -> Result<(), tokio_postgres::Error> {
    let mut client = open("DATABASE_URL").await;
    for isolation in [IsolationLevel::ReadCommitted, IsolationLevel::Serializable] {
        let mut transaction = client.build_transaction().isolation_level(isolation).start().await?;
        fence.apply(&transaction).await?;
        transaction.batch_execute(INSERT).await?;
        let savepoint = transaction.transaction().await?;
        assert!(savepoint.batch_execute(TWICE).await.is_err());
        savepoint.rollback().await?;
        transaction.batch_execute(INSERT).await?;
        transaction.commit().await?;
    }
    let unfenced = client.batch_execute(INSERT).await.unwrap_err();
    assert_eq!(Refusal::of(&unfenced), Some(Refusal::TokenRequired));
    Ok(())
}

#[cfg(feature = "sqlx")]
async fn by_sqlx(fence: &Fence) -> Result<(), sqlx::Error> {
    use sqlx::Connection;

    // A pooler may have another server's connection for the next transaction.
    let options = var("DATABASE_URL").unwrap().parse::<sqlx::postgres::PgConnectOptions>()?.statement_cache_capacity(0);
    let mut client = sqlx::PgConnection::connect_with(&options).await?;
    let mut transaction = client.begin().await?;
    fence.apply_sqlx(&mut transaction).await?;
    sqlx::query(INSERT).persistent(false).execute(&mut *transaction).await?;
    let mut savepoint = transaction.begin().await?;
    assert!(sqlx::query(TWICE).persistent(false).execute(&mut *savepoint).await.is_err());
    savepoint.rollback().await?;
    sqlx::query(INSERT).persistent(false).execute(&mut *transaction).await?;
    transaction.commit().await?;
    let unfenced = sqlx::query(INSERT).persistent(false).execute(&mut client).await.unwrap_err();
    assert_eq!(Refusal::of(&unfenced), Some(Refusal::TokenRequired));
    Ok(())
}

#[tokio::test]
async fn transactions_are_fenced() -> Outcome {
    let lease = take(NIGHTLY).await;
    by_tokio_postgres(lease.fence()).await?;
    #[cfg(feature = "sqlx")]
    by_sqlx(lease.fence()).await?;

    revoke(NIGHTLY).await;
    assert!(is_stale(&by_tokio_postgres(lease.fence()).await.unwrap_err()));
    #[cfg(feature = "sqlx")]
    assert!(is_stale(&by_sqlx(lease.fence()).await.unwrap_err()));
    lease.release().await?;

    // One transaction under two leases.
    let (nightly, reports) = (take(NIGHTLY).await, take("reports").await);
    let mut client = open("DATABASE_URL").await;
    let transaction = client.transaction().await?;
    nightly.fence().and(reports.fence()).apply(&transaction).await?;
    transaction.batch_execute(INSERT).await?;
    transaction.batch_execute("INSERT INTO reports DEFAULT VALUES").await?;
    transaction.commit().await?;
    Ok(())
}

/// Without a guard the check alone protects the transaction: no takeover passes it.
#[tokio::test]
async fn a_fenced_transaction_delays_a_takeover() -> Outcome {
    let lease = take("unguarded").await;
    let mut client = open("DATABASE_URL").await;
    let mut transaction = client.transaction().await?;
    lease.fence().apply(&transaction).await?;
    transaction.transaction().await?.rollback().await?;
    lease.release().await?;
    let mut takeover = tokio::spawn(take("unguarded"));
    assert!(timeout(Duration::from_secs(1), &mut takeover).await.is_err());
    transaction.commit().await?;
    timeout(PATIENCE, takeover).await??;
    let transaction = client.transaction().await?;
    assert!(is_stale(&lease.fence().apply(&transaction).await.unwrap_err()));
    Ok(())
}

#[tokio::test]
async fn what_is_dropped_is_given_back() -> Outcome {
    let client = Client::connect(&var("LEASES_URL")?, Default::default()).await?;
    drop(client.try_acquire("dropped", "test", TTL).await?);
    let lease = timeout(TTL / 2, client.acquire("dropped", "test", TTL, PATIENCE)).await??;
    let waits = client.acquire("dropped", "test", TTL, PATIENCE);
    assert!(timeout(Duration::from_millis(500), waits).await.is_err());
    lease.release().await?;
    timeout(TTL / 2, client.acquire("dropped", "test", TTL, PATIENCE)).await??;
    Ok(())
}

#[tokio::test]
async fn a_dropped_acquire_gives_back_what_it_wins() -> Outcome {
    let holder = take("late").await;
    let mut client = open("DATABASE_URL").await;
    let transaction = client.transaction().await?;
    holder.fence().apply(&transaction).await?;
    holder.release().await?;
    let other = Client::connect(&var("LEASES_URL")?, Default::default()).await?;
    assert!(timeout(Duration::from_secs(1), other.try_acquire("late", "test", TTL)).await.is_err());
    transaction.commit().await?;
    timeout(TTL / 2, take("late")).await?;
    Ok(())
}

#[tokio::test]
async fn the_end_of_a_lease_is_told() -> Outcome {
    let client = Client::connect(&var("LEASES_URL")?, Default::default()).await?;
    let lease = client.try_acquire("told", "test", Duration::from_secs(3)).await?;
    revoke("told").await;
    assert_eq!(timeout(PATIENCE, lease.lost()).await?.cause, Cause::Revoked);
    assert!(!lease.release().await?);
    Ok(())
}

#[tokio::test]
async fn no_secret_is_shown() -> Outcome {
    let lease = take("secret").await;
    let token = lease.token();
    assert_eq!(format!("{lease:?}"), format!("Lease {{ fence: Fence(\"secret={token}\"), ended: None }}"));
    let operator = open("LEASES_URL").await;
    let asked = "SELECT query FROM pg_stat_activity WHERE application_name = 'wirefence lease' AND query LIKE '%$%'";
    assert!(!operator.query(asked, &[]).await?.is_empty());
    for url in ["postgresql+asyncpg://u:geheim@db/app", "postgres://u:geheim@db:port/app", "u:geheim=@db"] {
        let error = Client::connect(url, Default::default()).await.unwrap_err();
        assert!(!format!("{error} {error:?}").contains("geheim"), "{url}: {error:?}");
    }
    Ok(())
}
