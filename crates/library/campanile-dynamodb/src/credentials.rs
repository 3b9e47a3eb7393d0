//! Credentials that take longer to load than a request may take.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use aws_sdk_dynamodb::config::{
    ConfigBag, IdentityCache, ResolveCachedIdentity, RuntimeComponents, SharedIdentityCache,
};
use aws_smithy_runtime_api::client::identity::{
    Identity, IdentityCachePartition, IdentityFuture, SharedIdentityResolver,
};
use futures_util::FutureExt;
use tokio::sync::watch;

use crate::config::SETUP_TIMEOUT;

/// A cache with at most one load at a time of each provider's credentials, for which all requests wait.
///
/// The load continues after the requests that wait for it have timed out, and answers later requests.
/// The SDK drops a load together with its request, and a slow provider would never answer.
#[derive(Debug)]
pub(crate) struct DetachedCache {
    cache: SharedIdentityCache,
    /// The last loads. The sender is dropped once a load has ended, also if its runtime has ended or
    /// the provider has panicked.
    loads: Mutex<HashMap<IdentityCachePartition, watch::Receiver<Option<Loaded>>>>,
}

type Loaded = Result<Identity, Arc<dyn Error + Send + Sync>>;

impl DetachedCache {
    pub(crate) fn new() -> Self {
        // The default is 5 s, less than `connect` waits.
        let cache = IdentityCache::lazy().load_timeout(SETUP_TIMEOUT).build();
        Self { cache, loads: Mutex::default() }
    }

    /// Joins the load in progress, or starts this one.
    fn join(
        &self,
        partition: IdentityCachePartition,
        load: impl Future<Output = Loaded> + Send + 'static,
    ) -> watch::Receiver<Option<Loaded>> {
        let (sender, receiver) = watch::channel(None);
        {
            let mut loads = self.loads.lock().unwrap_or_else(PoisonError::into_inner);
            match loads.get(&partition) {
                Some(current) if current.has_changed().is_ok() => return current.clone(),
                _ => loads.insert(partition, receiver.clone()),
            };
        }
        let mut load = Box::pin(load);
        // Cached credentials need no task.
        if let Some(loaded) = load.as_mut().now_or_never() {
            sender.send_replace(Some(loaded));
        } else {
            tokio::spawn(async move { sender.send_replace(Some(load.await)) });
        }
        receiver
    }
}

impl ResolveCachedIdentity for DetachedCache {
    fn resolve_cached_identity<'a>(
        &'a self,
        resolver: SharedIdentityResolver,
        components: &'a RuntimeComponents,
        _: &'a ConfigBag,
    ) -> IdentityFuture<'a> {
        let (cache, components) = (self.cache.clone(), components.clone());
        let partition = resolver.cache_partition();
        let load = async move {
            // A provider of credentials uses none of the request's settings.
            let settings = ConfigBag::base();
            let loaded = cache.resolve_cached_identity(resolver, &components, &settings).await;
            loaded.map_err(Arc::from)
        };
        IdentityFuture::new(async move {
            let mut load = self.join(partition, load);
            let loaded = load.wait_for(Option::is_some).await.map(|loaded| loaded.clone());
            match loaded {
                Ok(Some(loaded)) => Ok(loaded?),
                _ => Err("the load of the credentials was interrupted".into()),
            }
        })
    }
}
