//! Steps of a handler, with results that later attempts use.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{LockHandle, StepError};
use crate::limits::MAX_STEP_NAME_BYTES;
use crate::{BoxError, Steps};

impl LockHandle {
    /// Runs a step of the handler once for the key. Its result is recorded in the key's entry before
    /// this method returns, and a later attempt gets the result from there instead of running the step
    /// again.
    ///
    /// ```
    /// use campanile_core::{BoxError, LockHandle};
    ///
    /// # async fn reserve() -> Result<u64, BoxError> { Ok(1) }
    /// # async fn charge(_reservation: u64) -> Result<String, BoxError> { Ok("ch-1".into()) }
    /// async fn handle(lock: &LockHandle) -> Result<String, BoxError> {
    ///     let reservation = lock.step("reserve", reserve).await?;
    ///     // if the process dies here, the next attempt does not reserve again
    ///     lock.step("charge", async || charge(reservation).await).await
    /// }
    /// ```
    ///
    /// A step may still run twice: if the process dies after the effect of the step and before the
    /// result is recorded, or if the store loses the entry. So each step should have one effect, as its
    /// last action. A receiver that deduplicates by a [derived key](Self::derive) makes a second run
    /// harmless.
    ///
    /// # Names
    /// Results are found by name, from 1 to 64 bytes, and not by the order of the steps. A name can be used
    /// once by a handler. If a step is renamed, the next attempt of a key that has a result under the
    /// old name runs it again. A result without a step is ignored. Give a step another name if the type
    /// of its result changes.
    ///
    /// # Results
    /// Results are stored as JSON, and encrypted if replies are. The handler gets what JSON keeps of a
    /// result, also in the attempt that runs the step: for example, `Some(())` becomes `None`. A result that
    /// does not read back as its type, such as a `NaN`, is an error. All steps of a key together take at
    /// most [64 KiB](crate::limits::MAX_STEPS_BYTES), with their names and five bytes for each. They are
    /// kept as long as the entry of a key that is not completed, also over a redrive, and dropped when
    /// the key is completed.
    ///
    /// # Cost
    /// One command to the store for a step that runs, and none for a step that has a result.
    ///
    /// # Errors
    /// The error of the step itself, of which nothing is recorded, or a [`StepError`], converted. Return
    /// either from the handler. If the error type cannot be inferred, name it at the end of the step:
    /// `Ok::<_, BoxError>(id)`.
    ///
    /// # Cancellation
    /// If the future is dropped before the result is recorded, the next attempt may run the step again.
    pub async fn step<T, E>(
        &self,
        name: &str,
        run: impl AsyncFnOnce() -> Result<T, E>,
    ) -> Result<T, E>
    where
        T: Serialize + DeserializeOwned,
        E: From<StepError>,
    {
        let (result, encoded) = match self.begin_step(name)? {
            Begun::Recorded(result) => return Ok(result),
            Begun::HasRun(result, encoded) => (result, encoded),
            Begun::New => {
                self.0.steps.state().has_run = true;
                self.0.is_effect_possible.store(true, Ordering::Release);
                let output = run().await?;
                // Also if the type panics.
                self.0.steps.state().add_unrecordable(name);
                let encoded = encode(name, &output)?;
                // What later attempts will get.
                let result = decode(&encoded).map_err(|error| not_encoded(name, error))?;
                self.0.steps.state().push(name, encoded.clone());
                (result, encoded)
            }
        };
        let recorded = self.start_recording(name, encoded)?.await;
        if let Err(StepError::TooLarge { .. }) = recorded {
            self.0.steps.state().add_unrecordable(name);
        }
        recorded?;
        self.0.steps.state().set_recorded(name);
        Ok(result)
    }

    /// Begins a step, and finds the result that it has.
    fn begin_step<T: DeserializeOwned>(&self, name: &str) -> Result<Begun<T>, StepError> {
        if name.is_empty() || name.len() > MAX_STEP_NAME_BYTES {
            return Err(StepError::InvalidName { name: name.into() });
        }
        self.check().map_err(StepError::LockLost)?;
        let recorder = self.0.steps.recorder()?;
        let unreadable = |source| StepError::Unreadable { name: name.into(), source };
        if let Some(OwnResult { encoded, is_recorded, .. }) = self.0.steps.state().begin(name)? {
            let result = decode(&encoded).map_err(|error| unreadable(error.into()))?;
            return Ok(if is_recorded {
                Begun::Recorded(result)
            } else {
                Begun::HasRun(result, encoded)
            });
        }
        let stored = self.0.steps.earlier.as_ref().and_then(|steps| steps.get(name));
        let Some(stored) = stored else { return Ok(Begun::New) };
        let encoded = recorder.open(self, name, stored).map_err(unreadable)?;
        decode(&encoded).map(Begun::Recorded).map_err(|error| unreadable(error.into()))
    }

    fn start_recording(&self, name: &str, encoded: Bytes) -> Result<Recording, StepError> {
        self.check().map_err(StepError::LockLost)?;
        Ok(self.0.steps.recorder()?.record(self, name, encoded))
    }

    /// Permits the handler to use the names of its steps again. A layer that calls it again in the same attempt
    /// calls this before; the handler gets the results of the previous call.
    pub fn restart_steps(&self) {
        self.0.steps.state().begun.clear();
    }
}

/// How a step begins.
enum Begun<T> {
    New,
    /// An earlier call of the handler in this attempt has run the step, and was dropped before the result
    /// was recorded. The store may have it.
    HasRun(T, Bytes),
    Recorded(T),
}

fn encode<T: Serialize>(name: &str, result: &T) -> Result<Bytes, StepError> {
    serde_json::to_vec(result).map(Bytes::from).map_err(|error| not_encoded(name, error))
}

fn decode<T: DeserializeOwned>(encoded: &Bytes) -> Result<T, serde_json::Error> {
    serde_json::from_slice(encoded)
}

fn not_encoded(name: &str, error: serde_json::Error) -> StepError {
    StepError::NotEncoded { name: name.into(), source: error.into() }
}

/// The steps of the attempt for which a lock is held.
pub(super) struct LockSteps {
    /// What earlier attempts have recorded.
    earlier: Option<Steps>,
    recorder: OnceLock<Weak<dyn RecordSteps>>,
    state: Mutex<StepState>,
}

#[derive(Default)]
struct StepState {
    /// The names that the handler has used.
    begun: Vec<Box<str>>,
    /// The results of the steps that this attempt has run.
    own: Vec<OwnResult>,
    /// Whether a step has started. Its effect stays, whatever happens to the attempt.
    has_run: bool,
    /// The steps that have run with a result that cannot be recorded.
    unrecordable: Vec<Box<str>>,
    /// Whether the handler has ended, although its lock is held on.
    has_ended: bool,
}

#[derive(Clone)]
struct OwnResult {
    name: Box<str>,
    encoded: Bytes,
    is_recorded: bool,
}

impl LockSteps {
    pub(super) fn new(earlier: Option<Steps>) -> Self {
        Self { earlier, recorder: OnceLock::new(), state: Mutex::default() }
    }

    pub(super) fn set_recorder(&self, recorder: Weak<dyn RecordSteps>) {
        // A lock has one handler.
        let _ = self.recorder.set(recorder);
    }

    pub(super) fn has_run(&self) -> bool {
        self.state().has_run
    }

    pub(super) fn unrecordable(&self) -> Option<Box<str>> {
        self.state().unrecordable.first().cloned()
    }

    pub(super) fn end(&self) {
        self.state().has_ended = true;
    }

    fn recorder(&self) -> Result<Arc<dyn RecordSteps>, StepError> {
        self.recorder.get().and_then(Weak::upgrade).ok_or(StepError::NoHandler)
    }

    fn state(&self) -> MutexGuard<'_, StepState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StepState {
    /// Notes that a name is used. Returns the result if this attempt has run the step.
    fn begin(&mut self, name: &str) -> Result<Option<OwnResult>, StepError> {
        if self.has_ended {
            return Err(StepError::NoHandler);
        }
        if self.begun.iter().any(|begun| **begun == *name) {
            return Err(StepError::Repeated { name: name.into() });
        }
        self.begun.push(name.into());
        Ok(self.own.iter().find(|own| *own.name == *name).cloned())
    }

    fn add_unrecordable(&mut self, name: &str) {
        self.unrecordable.push(name.into());
    }

    fn push(&mut self, name: &str, encoded: Bytes) {
        self.unrecordable.retain(|unrecordable| **unrecordable != *name);
        self.own.push(OwnResult { name: name.into(), encoded, is_recorded: false });
    }

    fn set_recorded(&mut self, name: &str) {
        for own in self.own.iter_mut().filter(|own| *own.name == *name) {
            own.is_recorded = true;
        }
    }
}

/// The pending record of a step.
pub type Recording = Pin<Box<dyn Future<Output = Result<(), StepError>> + Send>>;

/// Records the steps of a layer's locks.
pub trait RecordSteps: Send + Sync {
    /// Records the encoded result of a step under this lock.
    fn record(&self, lock: &LockHandle, name: &str, result: Bytes) -> Recording;

    /// Finds the encoded result in what the entry has for the step.
    ///
    /// # Errors
    /// If the result cannot be decrypted.
    fn open(&self, lock: &LockHandle, name: &str, stored: Bytes) -> Result<Bytes, BoxError>;
}
