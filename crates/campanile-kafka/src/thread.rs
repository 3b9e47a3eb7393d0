//! The driver's thread.

use tokio::sync::oneshot;
use tracing::subscriber::NoSubscriber;

use crate::driver::{self, Driver, Services, Switch};
use crate::error::ConsumerError;
use crate::kafka::{self, KafkaSource};
use crate::policies::Policies;
use crate::summary::Summary;

/// A consumer that is about to serve.
pub(crate) struct Prepared {
    pub(crate) source: kafka::Settings,
    pub(crate) policies: Policies,
    pub(crate) services: Services,
    pub(crate) driver: driver::Settings,
}

impl Prepared {
    /// Starts the driver's thread.
    pub(crate) fn spawn(self, switch: Switch) -> Result<Serving, ConsumerError> {
        let timer = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let timer = timer.map_err(|error| no_thread(&error))?;
        let (ended, result) = oneshot::channel();
        let (left, closed) = oneshot::channel();
        // Events of the driver's thread go where the caller's go. Without a subscriber yet, they go to
        // the global one that may be set later.
        let subscriber = tracing::dispatcher::get_default(Clone::clone);
        let run = move || {
            let _subscriber = (!subscriber.is::<NoSubscriber>())
                .then(|| tracing::dispatcher::set_default(&subscriber));
            // Dropped last, when the group was left.
            let _left: oneshot::Sender<()> = left;
            let Self { source, policies, services, driver } = self;
            let source = match KafkaSource::start(&source) {
                Ok(source) => source,
                Err(error) => {
                    drop((switch, services));
                    return drop(ended.send(Err(error)));
                }
            };
            let driver =
                async { Driver::new(source, policies, services, switch, driver).run().await };
            let (result, source) = timer.block_on(driver);
            // Nobody waits for it if the future was dropped.
            let _ = ended.send(result);
            drop(source);
        };
        let thread = std::thread::Builder::new().name("campanile-driver".into()).spawn(run);
        // Nothing joins it: a broker that does not answer must not hold up the end.
        thread.map_err(|error| no_thread(&error))?;
        Ok(Serving { result, closed })
    }
}

/// A driver's thread that was started.
pub(crate) struct Serving {
    /// How serving has ended.
    pub(crate) result: oneshot::Receiver<Result<Summary, ConsumerError>>,
    /// Closed once the group was left.
    pub(crate) closed: oneshot::Receiver<()>,
}

fn no_thread(error: &std::io::Error) -> ConsumerError {
    ConsumerError::kafka(format!("no thread for the driver: {error}"), None)
}
