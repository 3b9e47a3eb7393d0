//! A payment provider.

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// A provider that charges once for each `Idempotency-Key`.
pub(crate) struct Provider {
    address: SocketAddr,
    ledger: Arc<Mutex<Ledger>>,
    _runtime: Runtime,
}

/// What happened to each payment.
pub(crate) type Payments = HashMap<String, Payment>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Payment {
    pub(crate) calls: usize,
    pub(crate) charges: usize,
}

#[derive(Default)]
struct Ledger {
    keys: HashSet<String>,
    payments: Payments,
    mode: Mode,
    /// The calls that were answered with 503.
    refused: usize,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Respond,
    /// Charges this many payments that were not charged before, then another one for which the
    /// response is held back.
    HoldAfter(usize),
    /// Charges nothing, and never responds.
    Held,
    /// Answers each call with 503.
    Away,
}

impl Provider {
    pub(crate) fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let ledger = Arc::default();
        let router = Router::new().route("/charges", post(charge)).with_state(Arc::clone(&ledger));
        runtime.spawn(axum::serve(listener, router).into_future());
        Self { address, ledger, _runtime: runtime }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Charges this many payments that were not charged before, then another one for which the
    /// response is held back, and then none.
    pub(crate) fn hold_response_after(&self, payments: usize) {
        self.ledger().mode = Mode::HoldAfter(payments);
    }

    /// Checks whether the response is held back.
    pub(crate) fn holds_response(&self) -> bool {
        self.ledger().mode == Mode::Held
    }

    /// Answers all calls with 503 from now on.
    pub(crate) fn go_away(&self) {
        self.ledger().mode = Mode::Away;
    }

    /// The calls that were answered with 503.
    pub(crate) fn refused(&self) -> usize {
        self.ledger().refused
    }

    /// Responds to all calls from now on.
    pub(crate) fn respond(&self) {
        self.ledger().mode = Mode::Respond;
    }

    pub(crate) fn payments(&self) -> Payments {
        self.ledger().payments.clone()
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap()
    }
}

impl Ledger {
    /// Charges a payment, unless the key is known. Returns the response, if there is one.
    fn charge(&mut self, key: String, payment: String) -> Option<StatusCode> {
        match self.mode {
            Mode::Held => return None,
            Mode::Away => {
                self.refused += 1;
                return Some(StatusCode::SERVICE_UNAVAILABLE);
            }
            Mode::Respond | Mode::HoldAfter(_) => {}
        }
        let payment = self.payments.entry(payment).or_default();
        payment.calls += 1;
        if !self.keys.insert(key) {
            return Some(StatusCode::CREATED);
        }
        payment.charges += 1;
        if payment.charges > 1 {
            return Some(StatusCode::CREATED);
        }
        self.mode = match self.mode {
            Mode::HoldAfter(0) => Mode::Held,
            Mode::HoldAfter(payments) => Mode::HoldAfter(payments - 1),
            mode => mode,
        };
        (self.mode != Mode::Held).then_some(StatusCode::CREATED)
    }
}

async fn charge(
    State(ledger): State<Arc<Mutex<Ledger>>>,
    headers: HeaderMap,
    payment: String,
) -> StatusCode {
    let key = headers["idempotency-key"].to_str().unwrap().to_owned();
    let response = ledger.lock().unwrap().charge(key, payment);
    match response {
        Some(status) => status,
        // Until the caller is killed.
        None => std::future::pending().await,
    }
}
