//! The inbox around a plain function.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};

use campanile_core::{BoxError, BoxableError, IntoKey, Outcome, WithLock};
use campanile_idempotency::reply::NoReply;
use campanile_idempotency::{IdempotencyLayer, ReplyCodec, Runner};
use tower_service::Service;

use super::Inbox;
use super::layer::InboxLayer;
use super::run::Run;
use super::transaction::{CarryTransaction, Transaction};

/// Runs a function once for each key, in a transaction that is committed together with the
/// completion of the key's entry: a [`Runner`] with an inbox. Created by [`Inbox::runner`], or, with
/// other settings, [from a layer](Self::from) of the inbox.
///
/// ```
/// use campanile_core::{BoxError, Outcome};
/// use campanile_postgres::{Inbox, PgStore, Transaction};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), BoxError> {
/// # let postgres = campanile_test::PgServer::start()?;
/// # campanile_postgres::migrate(postgres.url()).await?;
/// # postgres.psql("CREATE TABLE payout (account text, cents bigint)")?;
/// # let url = postgres.url();
/// let inbox = Inbox::new(&PgStore::connect(url).await?)?;
/// let payouts = inbox.runner("payouts")?;
///
/// let account = String::from("a-17");
/// let pay = async |tx: Transaction| {
///     tx.execute("INSERT INTO payout VALUES ($1, 100)", &[&account]).await?;
///     Ok::<_, BoxError>(())
/// };
/// assert_eq!(payouts.run("payout-1", pay).await?, Outcome::Processed(()));
/// assert!(payouts.run("payout-1", pay).await?.is_duplicate());
/// # assert_eq!(postgres.psql("SELECT * FROM payout")?, "a-17|100");
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct InboxRunner<C = NoReply> {
    runner: Runner<C>,
    inbox: Inbox,
    layer: Arc<IdempotencyLayer<(), C>>,
}

impl<C> InboxRunner<C> {
    /// Runs `f` in a transaction under the key's lock, unless the key is COMPLETED. Like any
    /// handler of the inbox, `f` may [run again](Inbox#when-the-handler-runs-again), so it must be
    /// `Clone`.
    ///
    /// # Errors
    /// A boxed [`IdempotencyError`](campanile_idempotency::IdempotencyError), with the error of `f`
    /// or an [`InboxError`](super::InboxError) as a source.
    ///
    /// # Cancellation
    /// Dropping the future rolls back the transaction, unless its commit has already been sent.
    pub async fn run<F, Fut, T, Err>(&self, key: impl IntoKey, f: F) -> Result<Outcome<T>, BoxError>
    where
        F: FnOnce(Transaction) -> Fut + Clone,
        Fut: Future<Output = Result<T, Err>>,
        Err: BoxableError,
        C: ReplyCodec<T>,
    {
        let in_transaction = |lock| {
            let run = Run::new(self.inbox.clone(), self.layer.clone(), lock);
            run.process(FunctionService, WithLock::new(f))
        };
        self.runner.run(key, in_transaction).await
    }
}

/// Creates a runner with the layer's settings; the layer's extractor is not used.
impl<E, C> From<InboxLayer<E, C>> for InboxRunner<C> {
    fn from(layer: InboxLayer<E, C>) -> Self {
        let (inbox, layer) = (layer.inbox().clone(), layer.inner().clone().with_key(()));
        Self { runner: layer.clone().into(), inbox, layer: Arc::new(layer) }
    }
}

impl<C> Clone for InboxRunner<C> {
    fn clone(&self) -> Self {
        Self { runner: self.runner.clone(), inbox: self.inbox.clone(), layer: self.layer.clone() }
    }
}

impl<C> fmt::Debug for InboxRunner<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxRunner")
            .field("inbox", &self.inbox)
            .field("layer", &self.layer)
            .finish()
    }
}

/// The service that runs the function.
struct FunctionService;

impl<F, Fut, T, Err> Service<WithLock<F>> for FunctionService
where
    F: FnOnce(Transaction) -> Fut,
    Fut: Future<Output = Result<T, Err>>,
{
    type Response = T;
    type Error = Err;
    type Future = Fut;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Err>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, function: WithLock<F>) -> Fut {
        let transaction = function.transaction().cloned();
        let transaction = transaction.expect("the inbox sets the transaction before each run");
        (function.into_inner())(transaction)
    }
}
