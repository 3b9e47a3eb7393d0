//! The handler.

use campanile::{BoxError, Request};
use serde::{Deserialize, Serialize};

use crate::client::ProviderClient;
use crate::faults::{Faults, Kill, Process};

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Payment {
    pub(crate) id: String,
    pub(crate) cents: u64,
}

/// The state of the handler.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) client: ProviderClient,
    /// In a service: always `Derived`.
    pub(crate) keys: Keys,
    pub(crate) faults: Faults,
}

/// The key that is sent with a call.
#[derive(Clone, Copy)]
pub(crate) enum Keys {
    /// The same in each attempt.
    Derived,
    /// Another one in each call.
    Random,
}

/// Charges a payment at the provider.
pub(crate) async fn charge(app: App, request: Request<Payment>) -> Result<(), BoxError> {
    let lock = request.lock()?;
    let process = request.extensions().get::<Process>().ok_or("the request has no process")?;
    let payment = request.body();
    let kill = app.faults.of_attempt(&payment.id, lock.attempt());
    let key = match app.keys {
        Keys::Derived => lock.derive("charge")?,
        Keys::Random => format!("{:016x}", fastrand::u64(..)),
    };
    if kill == Some(Kill::BeforeCall) {
        process.kill().await;
    }
    lock.check()?;
    app.client.charge(&key, payment).await?;
    // The payment is charged, and this is not recorded yet.
    if kill == Some(Kill::AfterCall) {
        process.kill().await;
    }
    Ok(())
}
