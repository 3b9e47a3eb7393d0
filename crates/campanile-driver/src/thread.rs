//! The driver's thread.

use tokio::sync::oneshot;
use tracing::subscriber::NoSubscriber;

use crate::driver::{self, Driver, DriverControl, Services, Source};
use crate::error::ConsumerError;
use crate::policies::Policies;
use crate::summary::Summary;

/// A consumer that is ready to serve.
pub struct DriverBuilder<F> {
    /// Starts the source. Called on the driver's thread, which it may block.
    pub start: F,
    pub policies: Policies,
    pub services: Services,
    pub driver: driver::Settings,
}

impl<F, S> DriverBuilder<F>
where
    F: FnOnce() -> Result<S, ConsumerError> + Send + 'static,
    S: Source,
{
    /// Starts the driver's thread.
    pub fn spawn(
        self,
        driver_control: DriverControl,
    ) -> Result<DriverThread, ConsumerError> {
        let timer = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let timer = timer.map_err(|error| spawn_error(&error))?;
        let (sender, result) = oneshot::channel();
        let (closing, closed) = oneshot::channel();
        // Events of the driver's thread go to the caller's subscriber. If the caller has none yet,
        // none is set, so that they go to a global subscriber that may be set later.
        let subscriber = tracing::dispatcher::get_default(Clone::clone);
        let run = move || {
            let _subscriber = (!subscriber.is::<NoSubscriber>())
                .then(|| tracing::dispatcher::set_default(&subscriber));
            // Dropped last, after the consumer has left the group.
            let _closing: oneshot::Sender<()> = closing;
            let Self { start, policies, services, driver } = self;
            let source = match start() {
                Ok(source) => source,
                Err(error) => {
                    drop((driver_control, services));
                    return drop(sender.send(Err(error)));
                }
            };
            let driver = async {
                Driver::new(source, policies, services, driver_control, driver).run().await
            };
            let (result, source) = timer.block_on(driver);
            // The receiver is gone if the future was dropped.
            let _ = sender.send(result);
            drop(source);
        };
        let thread = std::thread::Builder::new().name("campanile-driver".into()).spawn(run);
        // The thread is not joined: a broker that does not answer must not delay the end.
        thread.map_err(|error| spawn_error(&error))?;
        Ok(DriverThread { result, closed })
    }
}

/// A started driver thread.
pub struct DriverThread {
    /// The result of serving.
    pub result: oneshot::Receiver<Result<Summary, ConsumerError>>,
    /// Closed once the consumer has left the group.
    pub closed: oneshot::Receiver<()>,
}

fn spawn_error(error: &std::io::Error) -> ConsumerError {
    ConsumerError::kafka(format!("failed to start the driver's thread: {error}"), None)
}
