//! A payment provider.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Json, Router};

use crate::charge::Payment;
use crate::faults::{CallFault, Faults};

/// A provider that charges once for each `Idempotency-Key`. Clones refer to the same provider.
///
/// It stores a charge together with its key, in one transaction. When it is killed, the gateway in front of it
/// answers, and it starts again with what it has stored.
#[derive(Clone)]
pub(crate) struct Provider {
    faults: Faults,
    database: Arc<Mutex<Database>>,
}

#[derive(Default)]
struct Database {
    /// The number of calls for each payment.
    calls: HashMap<String, u32>,
    /// The payment of each key.
    keys: HashMap<String, String>,
    /// The number of charges of each payment.
    charges: HashMap<String, u32>,
}

impl Provider {
    pub(crate) fn new(faults: Faults) -> Self {
        Self { faults, database: Arc::default() }
    }

    pub(crate) fn router(&self) -> Router {
        Router::new().route("/charges", post(charge)).with_state(self.clone())
    }

    /// Returns the number of calls.
    pub(crate) fn calls(&self) -> u32 {
        self.database().calls.values().sum()
    }

    /// Returns how often each payment was charged.
    pub(crate) fn charges(&self) -> HashMap<String, u32> {
        self.database().charges.clone()
    }

    fn database(&self) -> MutexGuard<'_, Database> {
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Database {
    fn count_call(&mut self, payment: &str) -> u32 {
        let calls = self.calls.entry(payment.to_owned()).or_default();
        *calls += 1;
        *calls
    }

    /// Charges a payment, unless the key is known. Returns `false` if the key belongs to another payment.
    fn charge(&mut self, key: &str, payment: &str) -> bool {
        if let Some(known) = self.keys.get(key) {
            return known == payment;
        }
        self.keys.insert(key.to_owned(), payment.to_owned());
        *self.charges.entry(payment.to_owned()).or_default() += 1;
        true
    }
}

async fn charge(
    State(provider): State<Provider>,
    headers: HeaderMap,
    Json(payment): Json<Payment>,
) -> StatusCode {
    let Some(key) = headers.get("idempotency-key").and_then(|key| key.to_str().ok()) else {
        return StatusCode::BAD_REQUEST;
    };
    let mut database = provider.database();
    let call = database.count_call(&payment.id);
    let fault = provider.faults.of_call(&payment.id, call);
    match fault {
        Some(CallFault::Refused) => return StatusCode::SERVICE_UNAVAILABLE,
        Some(CallFault::KilledBeforeCharge) => return StatusCode::BAD_GATEWAY,
        Some(CallFault::KilledAfterCharge) | None => {}
    }
    if !database.charge(key, &payment.id) {
        return StatusCode::UNPROCESSABLE_ENTITY;
    }
    match fault {
        Some(CallFault::KilledAfterCharge) => StatusCode::BAD_GATEWAY,
        _ => StatusCode::CREATED,
    }
}
