//! The driver: a source, its settings and its services, on a thread of their own.

use std::fmt;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tracing::subscriber::NoSubscriber;

use crate::config::DriverConfig;
use crate::control::DriverControl;
use crate::error::ConsumerError;
use crate::event_loop::EventLoop;
use crate::routes::Router;
use crate::source::Source;
use crate::source_context::SourceContext;
use crate::summary::Summary;

/// A source of records with the services that process them. [`Serve`](crate::Serve) runs it.
pub struct Driver<F> {
    config: DriverConfig,
    router: Router,
    start: F,
}

impl<F, S> Driver<F>
where
    F: FnOnce(&SourceContext) -> Result<S, ConsumerError> + Send + 'static,
    S: Source,
{
    /// Creates a driver. `start` connects the source. It is called on the driver's own thread, which it may
    /// block.
    pub fn new(config: DriverConfig, router: Router, start: F) -> Self {
        Self { config, router, start }
    }

    /// Serves on the current task, without a thread of its own: for simulations in virtual time. Attempts run
    /// on the current runtime. The consumer's [handle](SourceContext::handle) comes from the context.
    ///
    /// # Errors
    /// Returns those of [`Serve`](crate::Serve).
    pub async fn serve_on_current_task(
        self,
        context: SourceContext,
    ) -> Result<Summary, ConsumerError> {
        let Self { config, router, start } = self;
        let control = DriverControl::of(context.control().clone());
        let (source, usage) = (start(&context)?, context.usage().clone());
        EventLoop::new(source, config, router, Handle::current(), control, usage).run().await.0
    }

    /// Starts the driver's thread. Attempts run on this runtime.
    pub(crate) fn spawn(
        self,
        runtime: Handle,
        control: DriverControl,
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
            let context = SourceContext::new(control.shared().clone());
            let Self { config, router, start } = self;
            let (source, usage) = match start(&context) {
                Ok(source) => (source, context.usage().clone()),
                Err(error) => {
                    drop((control, router));
                    return drop(sender.send(Err(error)));
                }
            };
            let serving = async {
                EventLoop::new(source, config, router, runtime, control, usage).run().await
            };
            let (result, source) = timer.block_on(serving);
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

impl<F> fmt::Debug for Driver<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("config", &self.config).finish_non_exhaustive()
    }
}

/// A started driver thread.
pub(crate) struct DriverThread {
    /// The result of serving.
    pub(crate) result: oneshot::Receiver<Result<Summary, ConsumerError>>,
    /// Closed once the consumer has left the group.
    pub(crate) closed: oneshot::Receiver<()>,
}

fn spawn_error(error: &std::io::Error) -> ConsumerError {
    ConsumerError::kafka(format!("failed to start the driver's thread: {error}"), None)
}
