//! Records the steps of handlers through the keeper, encrypted if replies are.

use bytes::{BufMut, Bytes, BytesMut};
use campanile_core::{
    BoxError, LockHandle, LockLost, LostCause, RecordSteps, Recording, StepError,
};

use crate::future::catch_panic;
use crate::keeper::RecordError;
use crate::layer::Policies;

impl RecordSteps for Policies {
    fn record(&self, lock: &LockHandle, name: &str, result: Bytes) -> Recording {
        let (lock, name) = (lock.clone(), Box::<str>::from(name));
        let sealed = match self.seal_step(&lock, &name, result) {
            Ok(sealed) => sealed,
            Err(source) => {
                return Box::pin(async move { Err(StepError::NotRecorded { name, source }) });
            }
        };
        let recording = self.keeper.record_step(&lock, &name, sealed);
        Box::pin(async move {
            tokio::select! {
                biased;
                result = recording => match result {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(RecordError::TooLarge)) => Err(StepError::TooLarge { name }),
                    Ok(Err(RecordError::Store(error))) => {
                        Err(StepError::NotRecorded { name, source: error.into() })
                    }
                    Ok(Err(RecordError::Lost)) | Err(_) => Err(StepError::LockLost(loss(&lock))),
                },
                lost = lock.lost() => Err(StepError::LockLost(lost)),
            }
        })
    }

    fn open(&self, lock: &LockHandle, name: &str, stored: Bytes) -> Result<Bytes, BoxError> {
        let Some(cipher) = &self.cipher else { return Ok(stored) };
        let mut opened = catch_panic(|| cipher.open(&self.namespace, lock.key(), stored))?;
        let prefix = step_prefix(name);
        if !opened.starts_with(&prefix) {
            return Err("sealed for another step, or as a reply".into());
        }
        Ok(opened.split_off(prefix.len()))
    }
}

impl Policies {
    fn seal_step(&self, lock: &LockHandle, name: &str, result: Bytes) -> Result<Bytes, BoxError> {
        let Some(cipher) = &self.cipher else { return Ok(result) };
        let mut named = BytesMut::from(&*step_prefix(name));
        named.put_slice(&result);
        catch_panic(|| cipher.seal(&self.namespace, lock.key(), named.freeze()))
    }
}

/// The name before an encrypted result, so that the result of one step is not accepted as that of
/// another.
fn step_prefix(name: &str) -> Vec<u8> {
    let mut prefix = Vec::with_capacity(1 + name.len());
    // Names are limited to 64 bytes.
    prefix.push(name.len() as u8);
    prefix.extend_from_slice(name.as_bytes());
    prefix
}

fn loss(lock: &LockHandle) -> LockLost {
    lock.check().err().unwrap_or_else(|| LockLost {
        key: lock.key().clone(),
        token: lock.token(),
        cause: LostCause::Superseded,
    })
}
