use std::fmt;
use std::time::{Duration, Instant};

use rand::random;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_postgres::types::Type;

use crate::clock::{self, now};
use crate::session::{Session, GRACE};
use crate::{Cause, Error, Fence, Lost, Options};

const ACQUIRE: &str = include_str!("sql/acquire.sql");
const RENEW: &str = include_str!("sql/renew.sql");
const RELEASE: &str = include_str!("sql/release.sql");

#[derive(Clone, Copy)]
struct State {
    deadline: Duration,
    at_deadline: Cause, // why it ends then
    ended: Option<Cause>,
}

impl State {
    fn cause(&self) -> Option<Cause> {
        self.ended.or((now() >= self.deadline).then_some(self.at_deadline))
    }
}

struct Order {
    keep_for: Duration,
    done: oneshot::Sender<Result<bool, Error>>,
}

/// One grant: the exclusive use of a resource until it ends. A task renews it at a third of its ttl. Dropped, it is given
/// back in the background, if its runtime still runs.
pub struct Lease {
    resource: String,
    token: i64,
    fence: Fence,
    state: watch::Receiver<State>,
    orders: mpsc::UnboundedSender<Order>,
}

impl Lease {
    pub fn token(&self) -> i64 {
        self.token
    }

    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Fails if the lease has ended. It reads the clock, so it also tells a process that was stopped a moment ago.
    pub fn check(&self) -> Result<(), Lost> {
        let state = *self.state.borrow();
        state.cause().map_or(Ok(()), |cause| Err(self.ended(cause)))
    }

    /// How long the lease lasts if it isn't renewed: until a fifth of its ttl before another can have it, counted from
    /// before the last confirmed request was sent. Zero if it has ended.
    pub fn remaining(&self) -> Duration {
        let state = *self.state.borrow();
        state.cause().map_or_else(|| state.deadline.saturating_sub(now()), |_| Duration::ZERO)
    }

    /// When the lease ends if it isn't renewed.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.remaining()
    }

    /// Waits for the end of the lease, whatever its cause.
    pub async fn lost(&self) -> Lost {
        let mut state = self.state.clone();
        let ended = state.wait_for(|state| state.ended.is_some()).await.ok().and_then(|state| state.ended);
        self.ended(ended.unwrap_or(Cause::Expired)) // with the runtime of its renewals
    }

    /// Ends the lease, and frees the resource. Returns whether it was still held in the database; a second call does
    /// nothing. It ends a second behind the deadline at the latest: without an answer, the lease expires by itself.
    pub async fn release(&self) -> Result<bool, Error> {
        self.keep_for(Duration::ZERO).await
    }

    /// Ends the lease when its work has succeeded, but leaves it taken until so long behind its grant, up to 366 days. If
    /// that time has passed, or the lease has ended, this is a release.
    pub async fn keep_for(&self, keep_for: Duration) -> Result<bool, Error> {
        let (done, answer) = oneshot::channel();
        let _ = self.orders.send(Order { keep_for, done });
        answer.await.unwrap_or(Ok(false)) // it was given back before
    }

    fn ended(&self, cause: Cause) -> Lost {
        Lost { resource: self.resource.clone(), token: self.token, cause }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("fence", &self.fence).field("ended", &self.check().err()).finish()
    }
}

/// Takes and keeps a lease, in a task of its own. It gives the lease back when the sender of orders is dropped: by the
/// caller that waits for the grant, or with the lease.
pub(crate) struct Keeper {
    session: Session,
    options: Options,
    resource: String,
    ttl: Duration,
    grant: String, // a secret: it is all that a renewal and a release need
    token: i64,
    granted: Duration,
    last: Duration,    // no deadline is later
    expires: Duration, // in the database, or earlier
    renew_at: Duration,
    state: watch::Sender<State>,
}

pub(crate) async fn acquire(
    session: Session,
    options: Options,
    resource: &str,
    holder: &str,
    ttl: Duration,
    wait: Duration,
) -> Result<Lease, Error> {
    let zero = Duration::ZERO;
    let state = watch::Sender::new(State { deadline: zero, at_deadline: Cause::Expired, ended: None });
    let (told, resource) = (state.subscribe(), resource.to_owned());
    let keeper = Keeper {
        session,
        options,
        resource: resource.clone(),
        ttl,
        grant: format!("{:032x}", random::<u128>()),
        token: 0,
        granted: zero,
        last: zero,
        expires: zero,
        renew_at: zero,
        state,
    };
    let (orders, received) = mpsc::unbounded_channel();
    let (reply, won) = oneshot::channel();
    // Others may know this name of the grant.
    let holder = format!("{holder}/{:032x}", random::<u128>());
    tokio::spawn(keeper.run(holder, wait, reply, received));
    let token = won.await.unwrap_or(Err(Error::Unavailable(None)))?;
    let fence = Fence::new(&resource, token);
    Ok(Lease { resource, token, fence, state: told, orders })
}

impl Keeper {
    async fn run(
        mut self,
        holder: String,
        wait: Duration,
        reply: oneshot::Sender<Result<i64, Error>>,
        mut orders: mpsc::UnboundedReceiver<Order>,
    ) {
        let won = tokio::select! {
            won = self.win(&holder, wait) => won,
            _ = orders.recv() => Err(Error::Unavailable(None)),
        };
        let result = match won {
            Ok(token) => {
                let _ = reply.send(Ok(token));
                match self.hold(&mut orders).await {
                    Some(order) => {
                        let _ = order.done.send(self.give_back(order.keep_for).await);
                        return;
                    }
                    None => self.give_back(Duration::ZERO).await,
                }
            }
            Err(error) => {
                let granted = matches!(error, Error::Unavailable(_) | Error::Lost(_)); // it may be
                let _ = reply.send(Err(error));
                if !granted {
                    return;
                }
                self.release(GRACE).await
            }
        };
        if let Err(error) = result {
            log::warn!("cannot release lease of \"{}\", it will expire: {error}", self.resource);
        }
    }

    /// Asks until the lease is won, or the wait is over.
    async fn win(&mut self, holder: &str, wait: Duration) -> Result<i64, Error> {
        let until = now().saturating_add(wait);
        let mut pause = Duration::from_millis(50);
        loop {
            let sent = now();
            let error = match self.ask(holder).await {
                Ok(token) => {
                    (self.token, self.granted) = (token, now());
                    self.last = sent.saturating_add(self.options.max_hold);
                    self.confirm(sent);
                    let cause = self.state().cause();
                    return cause.map_or(Ok(token), |cause| {
                        Err(Error::Lost(Lost { resource: self.resource.clone(), token, cause }))
                    });
                }
                Err(error) => error,
            };
            let left = until.saturating_sub(now());
            let delay = match &error {
                _ if left.is_zero() => return Err(error),
                Error::Held { lasts, .. } => {
                    lasts.unwrap_or_default().clamp(Duration::from_millis(50), Duration::from_secs(1))
                }
                Error::Unavailable(_) => {
                    self.session.cut();
                    pause = (2 * pause).min(Duration::from_secs(2));
                    pause
                }
                _ => return Err(error),
            };
            clock::sleep_until(now() + delay.min(left)).await;
        }
    }

    async fn ask(&mut self, holder: &str) -> Result<i64, Error> {
        let bound = self.options.timeout.as_millis().clamp(1, i32::MAX as u128).to_string();
        let seconds = self.ttl.as_secs_f64();
        let values = [
            (&bound as _, Type::TEXT),
            (&self.resource as _, Type::TEXT),
            (&holder as _, Type::TEXT),
            (&seconds as _, Type::FLOAT8),
            (&self.grant as _, Type::TEXT),
        ];
        let row = self.session.ask(ACQUIRE, &values, self.options.timeout).await?;
        row.get::<_, Option<i64>>(0).ok_or_else(|| Error::Held {
            resource: self.resource.clone(),
            by: row.get(1),
            lasts: row.get::<_, Option<f64>>(2).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
        })
    }

    /// Renews the lease until it is to be given back: by an order, or since nobody has it any more.
    async fn hold(&mut self, orders: &mut mpsc::UnboundedReceiver<Order>) -> Option<Order> {
        loop {
            let deadline = self.state().deadline;
            let cause = tokio::select! {
                biased;
                order = orders.recv() => return order,
                () = clock::sleep_until(deadline) => Some(Cause::Expired),
                cause = self.renew() => cause,
            };
            if let Some(cause) = cause {
                self.end(cause);
                self.session.cut();
                return orders.recv().await;
            }
        }
    }

    /// Renews the lease when it is time. Returns why it is lost. A try takes half of the remaining time, so that another
    /// fits in.
    async fn renew(&mut self) -> Option<Cause> {
        clock::sleep_until(self.renew_at).await;
        let (sent, deadline) = (now(), self.state().deadline);
        self.state.send_modify(|state| {
            if state.at_deadline == Cause::Expired {
                state.at_deadline = Cause::Unreachable;
            }
        });
        match self.extend(self.ttl, deadline.saturating_sub(sent) / 2).await {
            Ok(None) if now() < deadline => self.confirm(sent),
            Ok(cause) => return cause, // one that has ended doesn't come back
            Err(error) => {
                log::warn!("lease of \"{}\" not renewed: {error}", self.resource);
                self.session.cut();
                self.renew_at = now() + self.ttl / 20;
            }
        }
        None
    }

    async fn give_back(&mut self, keep_for: Duration) -> Result<bool, Error> {
        let State { deadline, .. } = self.state();
        let left = match self.end(Cause::Released) {
            Cause::Released => self.granted.saturating_add(keep_for).saturating_sub(now()),
            Cause::Lost | Cause::Revoked | Cause::Failover => return Ok(false),
            _ => Duration::ZERO,
        };
        let patience = deadline.saturating_sub(now()).max(Duration::from_secs(1));
        if !left.is_zero() {
            return Ok(self.extend(left, patience).await?.is_none());
        }
        if now() >= self.expires {
            return Ok(false);
        }
        self.release(patience).await
    }

    async fn release(&mut self, patience: Duration) -> Result<bool, Error> {
        let values = [(&self.resource as _, Type::TEXT), (&self.grant as _, Type::TEXT)];
        Ok(self.session.ask(RELEASE, &values, patience.min(self.options.timeout)).await?.get(0))
    }

    /// Has the lease expire so long from now, or returns why it is lost.
    async fn extend(&mut self, time: Duration, patience: Duration) -> Result<Option<Cause>, Error> {
        let seconds = time.as_secs_f64();
        let values = [
            (&self.resource as _, Type::TEXT),
            (&self.token as _, Type::INT8),
            (&self.grant as _, Type::TEXT),
            (&seconds as _, Type::FLOAT8),
        ];
        let row = self.session.ask(RENEW, &values, patience.min(self.options.timeout)).await?;
        Ok(row.get::<_, Option<&str>>(0).map(|cause| match cause {
            "failover" => Cause::Failover,
            "revoked" => Cause::Revoked,
            _ => Cause::Lost,
        }))
    }

    /// The database has answered a request that was sent at a time.
    fn confirm(&mut self, sent: Duration) {
        (self.expires, self.renew_at) = (sent + self.ttl, sent + self.ttl / 3);
        let deadline = (sent + self.ttl / 5 * 4).min(self.last);
        let at_deadline = if deadline == self.last { Cause::MaxHold } else { Cause::Expired };
        self.state.send_replace(State { deadline, at_deadline, ended: None });
    }

    /// Ends the lease, and returns the cause: another one if it had ended before.
    fn end(&mut self, cause: Cause) -> Cause {
        let cause = self.state().cause().unwrap_or(cause);
        self.state.send_modify(|state| state.ended = Some(cause));
        cause
    }

    fn state(&self) -> State {
        *self.state.borrow()
    }
}
