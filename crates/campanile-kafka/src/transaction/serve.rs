//! Serving in transactions.

use campanile_core::{BoxableError, Record};
use tower_service::Service;

use super::answer::{IntoOutputs, outputs_of};
use super::settings::Transactions;
use crate::consumer::Consumer;
use crate::routes::{Router, ServiceRoute};
use crate::serve::Serve;

impl Consumer {
    /// Serves records to this service, and commits what it gives out together with their offsets: who
    /// reads that with `isolation.level=read_committed` sees the outputs of each record once, whatever
    /// was killed or aborted in between. Await what it gives.
    ///
    /// The service answers each record with its [`Outputs`](crate::Outputs). They are held back until all
    /// records before it in its partition are finished, and are committed with the offset behind it, in
    /// one transaction of all partitions; they count in the [budget](Self::with_budget) until then. A
    /// transaction that the brokers abort is done again with the same outputs.
    ///
    /// ```
    /// use campanile_core::{BoxError, DecodeLayer, Request, key};
    /// use campanile_idempotency::{IdempotencyLayer, MemoryStore};
    /// use campanile_kafka::{Consumer, ConsumerConfig, Output, Outputs, Transactions};
    /// use tower::ServiceBuilder;
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Payment { id: String, cents: u64 }
    ///
    /// async fn bill(request: Request<Payment>) -> Result<Outputs, BoxError> {
    ///     let Payment { id, cents } = request.body();
    ///     let invoice = Output::to("invoices").key(id.clone()).payload(cents.to_string());
    ///     Ok(Outputs::of(request.record()).with(invoice))
    /// }
    ///
    /// # fn main() -> Result<(), BoxError> {
    /// let layer = IdempotencyLayer::new(MemoryStore::new(), "bills", key::field(|p: &Payment| &p.id))?;
    /// let service = ServiceBuilder::new()
    ///     .layer(DecodeLayer::json())
    ///     // one invoice for each payment, however often that comes; with the outputs in its entry
    ///     .layer(Outputs::kept_by(layer))
    ///     .service_fn(bill);
    /// let serve = Consumer::new(ConsumerConfig::new("localhost:9092", "billing"))?
    ///     .subscribe(["payments"])
    ///     .serve_transactional(service, Transactions::new("billing-0"));
    /// # let _ = serve;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # With the idempotency layer, and without
    /// Transactions alone make one output of each *record*: a handler that only computes needs no more.
    /// It runs again for what was not committed, so whatever else it does may happen twice; and a
    /// producer that sends the same event twice sends two records. The layer makes one of each *key*, and
    /// keeps the handler from running again: the outputs are kept in the key's entry
    /// ([`Outputs::kept_by`](crate::Outputs::kept_by)). If its record comes again, since it was not
    /// committed, they are sent from there; for a duplicate that stands elsewhere nothing is sent, since
    /// they go with the first one's offset.
    ///
    /// Every topic goes to this one service, which may look at the record's: there are no
    /// [`Routes`](crate::Routes) in transactions.
    ///
    /// # What is not in a transaction
    /// * Dead letters and the copies in [retry topics](crate::RetryTopics): they are published at once, and
    ///   may be there twice. Two copies of one record are two records, so without the layer each has
    ///   outputs; with it, the one that was processed.
    /// * What the handler does elsewhere.
    /// * A group whose offsets are set back: what is processed again is sent again, with the layer, too.
    ///
    /// # Errors
    /// Beside those of [`serve`](Self::serve): [`ConsumerError::Kafka`] where another instance takes the
    /// transactional id, or where that or a topic may not be used; and [`ConsumerError::Stopped`] at a record
    /// whose outputs the brokers never take, are another record's, or are not known, since a duplicate has
    /// none in its entry.
    ///
    /// [`ConsumerError::Kafka`]: crate::ConsumerError::Kafka
    /// [`ConsumerError::Stopped`]: crate::ConsumerError::Stopped
    pub fn serve_transactional<S>(mut self, service: S, transactions: Transactions) -> Serve
    where
        S: Service<Record, Response: IntoOutputs + 'static> + Clone + Send + 'static,
        S::Error: BoxableError,
        S::Future: Send + 'static,
    {
        self.transactions = Some(transactions);
        self.start(Ok(Router::single(ServiceRoute::answering(service, outputs_of))))
    }
}
