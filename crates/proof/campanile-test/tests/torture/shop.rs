//! A shop whose effects can be counted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use campanile_core::{BoxError, DecodeLayer, Outcome, Record, Request, handler};
use campanile_idempotency::{IdempotencyConfig, IdempotencyLayer, LockKeeper};
use campanile_test::torture::{Failure, Report, point, torture};
use tower::ServiceBuilder;
use tower::util::BoxCloneService;

/// The fakes of a payment provider, a mail server and a database. They survive crashes.
#[derive(Clone, Default)]
pub(crate) struct Shop(Arc<Mutex<Effects>>);

#[derive(Default)]
pub(crate) struct Effects {
    /// The charges that the provider has made: the payments, by key of the request.
    charges: BTreeMap<String, String>,
    mails: Vec<String>,
    /// The rows of the table of payments, by their primary key.
    pub(crate) rows: BTreeMap<String, u64>,
    /// The rows of a table without a primary key.
    pub(crate) entries: Vec<String>,
    balance: u64,
}

impl Shop {
    pub(crate) fn effects(&self) -> MutexGuard<'_, Effects> {
        self.0.lock().unwrap()
    }

    /// Charges a payment, once for each key.
    pub(crate) async fn charge(&self, payment: &str, key: Option<String>) {
        point("charge requested").await;
        self.effects().charge(payment, key);
        point("charged").await;
    }

    pub(crate) async fn send_mail(&self, payment: &str) {
        point("mail requested").await;
        self.effects().mails.push(payment.to_owned());
        point("mail sent").await;
    }

    /// Inserts a row. Fails if there is one.
    pub(crate) async fn insert(&self, payment: &str) -> Result<(), BoxError> {
        point("insert requested").await;
        if self.effects().rows.insert(payment.to_owned(), 5).is_some() {
            return Err(format!("duplicate key {payment}").into());
        }
        point("inserted").await;
        Ok(())
    }

    /// Inserts a row, unless there is one. With it, in the same commit, inserts a mail that is sent later.
    pub(crate) async fn upsert(&self, payment: &str, mail: Option<&str>) {
        point("upsert requested").await;
        self.effects().upsert(payment, mail);
        point("upserted").await;
    }

    /// Adds to the balance.
    pub(crate) async fn add(&self, amount: u64) {
        point("addition requested").await;
        self.effects().balance += amount;
        point("added").await;
    }

    /// Reads whether there is an entry.
    pub(crate) async fn has_entry(&self, payment: &str) -> bool {
        point("read requested").await;
        let has_entry = self.effects().entries.iter().any(|entry| entry == payment);
        point("read").await;
        has_entry
    }

    /// Appends an entry.
    pub(crate) async fn append(&self, payment: &str) {
        point("append requested").await;
        self.effects().entries.push(payment.to_owned());
        point("appended").await;
    }
}

impl Effects {
    fn charge(&mut self, payment: &str, key: Option<String>) {
        let key = key.unwrap_or_else(|| format!("no key {}", self.charges.len()));
        self.charges.insert(key, payment.to_owned());
    }

    pub(crate) fn upsert(&mut self, payment: &str, mail: Option<&str>) {
        if self.rows.insert(payment.to_owned(), 5).is_none() {
            self.mails.extend(mail.map(str::to_owned));
        }
    }

    pub(crate) fn check_charges(&self) -> Result<(), String> {
        expect_one("charges", self.charges.values())
    }

    pub(crate) fn charges_without_key(&self) -> usize {
        self.charges.keys().filter(|key| key.starts_with("no key")).count()
    }

    pub(crate) fn check_mails(&self) -> Result<(), String> {
        expect_one("mails", self.mails.iter())
    }

    pub(crate) fn check_rows(&self) -> Result<(), String> {
        expect_one("rows", self.rows.keys())
    }

    pub(crate) fn check_entries(&self) -> Result<(), String> {
        expect_one("entries", self.entries.iter())
    }

    pub(crate) fn check_sum(&self) -> Result<(), String> {
        match self.rows.values().sum() {
            5 => Ok(()),
            sum => Err(format!("the sum is {sum}, expected 5")),
        }
    }

    pub(crate) fn check_balance(&self) -> Result<(), String> {
        match self.balance {
            5 => Ok(()),
            balance => Err(format!("the balance is {balance}, expected 5")),
        }
    }
}

fn expect_one<'a>(what: &str, effects: impl Iterator<Item = &'a String>) -> Result<(), String> {
    match effects.filter(|payment| *payment == "p-1").count() {
        1 => Ok(()),
        count => Err(format!("{count} {what} of p-1, expected 1")),
    }
}

pub(crate) type Stack = BoxCloneService<Record, Outcome<()>, BoxError>;

/// The record of a payment.
pub(crate) fn record(payment: &str) -> Record {
    Record::builder("payments", 0, 0).payload(format!("\"{payment}\"")).build()
}

pub(crate) type ShopLayer = IdempotencyLayer<fn(&Request<String>) -> String>;

/// One lock for each payment.
pub(crate) fn layer(keeper: LockKeeper) -> Result<ShopLayer, BoxError> {
    layer_with(keeper, IdempotencyConfig::new("shop"))
}

/// One lock for each payment, with these settings.
pub(crate) fn layer_with(
    keeper: LockKeeper,
    config: IdempotencyConfig,
) -> Result<ShopLayer, BoxError> {
    let id: fn(&Request<String>) -> String = |request| request.body().clone();
    Ok(IdempotencyLayer::new(keeper, config, id)?)
}

/// The stack of a handler.
pub(crate) fn stack<H, F>(layer: ShopLayer, shop: Shop, charge: H) -> Stack
where
    H: Fn(Shop, Request<String>) -> F + Clone + Send + 'static,
    F: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    let service = ServiceBuilder::new()
        .layer(DecodeLayer::json())
        .layer(layer)
        .service(handler(shop, charge));
    BoxCloneService::new(service)
}

/// Tortures a handler of one payment.
pub(crate) fn torture_handler<H, F>(
    charge: H,
    check: fn(&Effects) -> Result<(), String>,
) -> Result<Report, Failure>
where
    H: Fn(Shop, Request<String>) -> F + Clone + Send + 'static,
    F: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    torture(
        async || Shop::default(),
        async |shop, keeper| Ok(stack(layer(keeper)?, shop, charge.clone())),
        async |shop: Shop| check(&shop.effects()),
    )
    .run([record("p-1")])
}
