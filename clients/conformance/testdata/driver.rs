//! Does what the cases say with the client for Rust. Each line of its input is a step, and each line of its output what
//! came of it.

use std::collections::hash_map::{Entry, HashMap};
use std::env::var;
use std::error::Error;
use std::time::{Duration, Instant};

use serde_json::{json, Value};
use tokio::io::{stdin, AsyncBufReadExt, BufReader};
use tokio::time::{sleep, timeout};
use tokio_postgres::{Config, NoTls};
use wirefence::{Cause, Client, Lease, Options, Refusal};

type Outcome = Result<Value, Box<dyn Error>>;

struct Driver {
    clients: HashMap<Duration, Client>, // by max_hold
    lease: Option<Lease>,
    began: Instant,
}

fn seconds(step: &Value, field: &str, default: f64) -> Duration {
    Duration::from_secs_f64(step[field].as_f64().unwrap_or(default))
}

fn text<'a>(step: &'a Value, field: &str) -> &'a str {
    step[field].as_str().unwrap_or_default()
}

fn cause(cause: Cause) -> &'static str {
    match cause {
        Cause::Expired => "expired",
        Cause::Unreachable => "unreachable",
        Cause::Lost => "lost",
        Cause::Revoked => "revoked",
        Cause::Failover => "failover",
        Cause::MaxHold => "max_hold",
        _ => "released",
    }
}

impl Driver {
    async fn client(&mut self, step: &Value) -> Result<Client, wirefence::Error> {
        let max_hold = seconds(step, "max_hold", 86400.0);
        if let Entry::Vacant(entry) = self.clients.entry(max_hold) {
            let options = Options {
                max_hold,
                timeout: Duration::from_secs(10),
            };
            entry.insert(Client::connect(&var("API").unwrap(), options).await?);
        }
        Ok(self.clients[&max_hold].clone())
    }

    async fn acquire(&mut self, step: &Value) -> Result<&Lease, wirefence::Error> {
        let client = self.client(step).await?;
        self.began = Instant::now();
        let (resource, holder) = (text(step, "resource"), var("NAME").unwrap());
        let (ttl, wait) = (seconds(step, "ttl", 15.0), seconds(step, "wait", 0.0));
        Ok(self
            .lease
            .insert(client.acquire(resource, &holder, ttl, wait).await?))
    }

    fn lease(&self) -> &Lease {
        self.lease.as_ref().expect("a lease")
    }

    async fn act(&mut self, step: &Value) -> Outcome {
        Ok(match text(step, "do") {
            "acquire" => {
                let lease = self.acquire(step).await?;
                let remaining = lease
                    .deadline()
                    .saturating_duration_since(Instant::now())
                    .as_secs_f64();
                json!({"granted": true, "token": lease.token().to_string(), "fence": lease.fence().as_str(),
                    "comment": lease.fence().comment(), "remaining": remaining})
            }
            "check" => match self.lease().check() {
                Ok(()) => json!({"held": true}),
                Err(lost) => json!({"held": false, "cause": cause(lost.cause)}),
            },
            "await_end" => match timeout(seconds(step, "within", 0.0), self.lease().lost()).await {
                Ok(lost) => {
                    json!({"cause": cause(lost.cause), "at": self.began.elapsed().as_secs_f64()})
                }
                Err(_) => json!({"error": "not ended"}),
            },
            "remaining" => json!({"remaining": self.lease().remaining().as_secs_f64()}),
            "release" => {
                self.lease().release().await?;
                json!({"released": true})
            }
            "keep" => {
                self.lease()
                    .keep_for(seconds(step, "keep_for", 0.0))
                    .await?;
                json!({"given_up": true})
            }
            "run" => {
                self.acquire(step).await?;
                sleep(seconds(step, "works", 0.0)).await;
                if step["fails"] == true {
                    self.lease().release().await?;
                } else {
                    self.lease()
                        .keep_for(seconds(step, "keep_for", 0.0))
                        .await?;
                }
                json!({"ran": true})
            }
            "write" => {
                self.write(text(step, "via")).await?;
                json!({"written": true})
            }
            "sql" => {
                let (client, connection) =
                    tokio_postgres::connect(&var("DATABASE_URL")?, NoTls).await?;
                tokio::spawn(connection);
                client.batch_execute(text(step, "sql")).await?;
                json!({})
            }
            other => panic!("told to {other:?}"),
        })
    }

    async fn write(&self, via: &str) -> Result<(), tokio_postgres::Error> {
        let (insert, fence) = (
            "INSERT INTO orders (item) VALUES ('book')",
            self.lease().fence(),
        );
        let mut config: Config = var("DATABASE_URL").unwrap().parse()?;
        if via == "options" {
            config.options(format!("-c wirefence.token={fence}"));
        }
        let (mut client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        match via {
            "set_local" => {
                let transaction = client.transaction().await?;
                fence.apply(&transaction).await?;
                transaction.batch_execute(insert).await?;
                transaction.commit().await
            }
            "options" => client.batch_execute(insert).await,
            _ => {
                client
                    .batch_execute(&format!("{insert} {}", fence.comment()))
                    .await
            }
        }
    }
}

fn failure(error: Box<dyn Error>) -> Value {
    if let Some(refusal) = Refusal::of(&*error) {
        let told = error
            .downcast_ref::<tokio_postgres::Error>()
            .and_then(|e| e.as_db_error())
            .expect("a refusal");
        return json!({"error": format!("{refusal:?}"), "sqlstate": refusal.sqlstate(), "condition": refusal.condition(),
            "message": told.message(), "detail": told.detail().unwrap_or_default(), "hint": told.hint().unwrap_or_default()});
    }
    if let Some(error) = error.downcast_ref::<tokio_postgres::Error>() {
        return json!({"error": "other", "sqlstate": error.code().map(|state| state.code())});
    }
    match *error
        .downcast::<wirefence::Error>()
        .expect("an error of the client")
    {
        wirefence::Error::Held { by, .. } => json!({"error": "held", "held_by": by}),
        wirefence::Error::Lost(lost) => json!({"error": "lost", "cause": cause(lost.cause)}),
        wirefence::Error::Unavailable(_) => json!({"error": "unavailable"}),
        wirefence::Error::Refused(error)
            if error.code().is_some_and(|state| state.code() == "22023") =>
        {
            json!({"error": "invalid"})
        }
        error => panic!("{error}"),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut driver = Driver {
        clients: HashMap::new(),
        lease: None,
        began: Instant::now(),
    };
    driver.client(&json!({})).await?;
    let mut lines = BufReader::new(stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let step: Value = serde_json::from_str(&line)?;
        let started = Instant::now();
        let mut outcome = driver.act(&step).await.unwrap_or_else(|error| {
            eprintln!("{}: {error:?}", step["do"]);
            failure(error)
        });
        outcome["took"] = json!(started.elapsed().as_secs_f64());
        println!("{outcome}");
    }
    Ok(())
}
