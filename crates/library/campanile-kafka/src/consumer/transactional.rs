//! Serving in transactions.

use campanile_core::{BoxableError, Record};
use campanile_driver::{Router, Serve};
use tower_service::Service;

use super::Consumer;
use crate::transaction::{IntoOutputs, Transactions, outputs_of};

impl Consumer {
    /// Serves records to this service, and commits its outputs in one transaction with the offsets of
    /// the records. A reader with `isolation.level=read_committed` sees the outputs of each record once,
    /// regardless of crashes and aborts. Await the returned [`Serve`].
    ///
    /// The service responds to each record with its [`Outputs`](crate::Outputs). They are held back
    /// until all earlier records of the partition are finished, and are then committed with the offset
    /// after the record, in one transaction for all partitions. Until then they count in the
    /// [budget](Self::with_budget). If the brokers abort a transaction, it is retried with the same
    /// outputs.
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
    ///     // one invoice per payment, however often it is delivered; the entry stores the outputs
    ///     .layer(Outputs::stored_by(layer))
    ///     .service_fn(bill);
    /// let serve = Consumer::new(ConsumerConfig::new("localhost:9092", "billing"))?
    ///     .subscribe(["payments"])
    ///     .serve_transactional(service, Transactions::new("billing-0"));
    /// # let _ = serve;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # With and without the idempotency layer
    /// Transactions alone produce outputs once per *record*, which is enough for a handler that only
    /// computes. The handler runs again for records that were not committed, so its other effects may
    /// happen twice; and a producer that sends the same event twice sends two records.
    ///
    /// With the layer, outputs are produced once per *key*, and the handler does not run again: the key's
    /// entry stores the outputs ([`Outputs::stored_by`](crate::Outputs::stored_by)). If the record is
    /// delivered again because it was not committed, its outputs are sent from the entry. For a duplicate
    /// at other coordinates nothing is sent, because the outputs are committed with the offset of the
    /// first record.
    ///
    /// This one service receives the records of all topics, and can branch on the record's topic:
    /// [`Routes`](crate::Routes) are not available in transactions.
    ///
    /// # What is not in a transaction
    /// * Dead letters and the copies in [retry topics](crate::RetryTopics): they are published
    ///   immediately, and possibly twice. Two copies of one record are two records. Without the layer,
    ///   each of them has outputs; with the layer, only the copy that was processed.
    /// * The other effects of the handler.
    /// * Resets of the group's offsets: the outputs of records that are processed again are sent again,
    ///   even with the layer.
    ///
    /// # Errors
    /// In addition to the errors of [`serve`](Self::serve): [`ConsumerError::Kafka`] if another instance
    /// takes over the transactional id, or if the id or a topic may not be used; and
    /// [`ConsumerError::Stopped`] at a record with outputs that the brokers will never accept, that
    /// belong to another record, or that are unknown because a duplicate's entry has none.
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
        self.start(Ok(Router::with_items(service, outputs_of)))
    }
}
