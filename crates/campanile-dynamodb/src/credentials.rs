//! Credentials that take longer to load than a request may take.

use aws_sdk_dynamodb::config::{
    ConfigBag, IdentityCache, ResolveCachedIdentity, RuntimeComponents, SharedIdentityCache,
};
use aws_smithy_runtime_api::client::identity::{IdentityFuture, SharedIdentityResolver};

use crate::config::SETUP_TIMEOUT;

/// A cache whose loads continue after the requests that wait for them have timed out, and answer later
/// requests. The SDK drops a load together with its request, and a slow provider would never answer.
#[derive(Debug)]
pub(crate) struct DetachedCache(SharedIdentityCache);

impl DetachedCache {
    pub(crate) fn new() -> Self {
        // The default is 5 s, less than `connect` waits.
        Self(IdentityCache::lazy().load_timeout(SETUP_TIMEOUT).build())
    }
}

impl ResolveCachedIdentity for DetachedCache {
    fn resolve_cached_identity<'a>(
        &'a self,
        resolver: SharedIdentityResolver,
        components: &'a RuntimeComponents,
        _: &'a ConfigBag,
    ) -> IdentityFuture<'a> {
        let (cache, components) = (self.0.clone(), components.clone());
        let load = async move {
            // A provider of credentials uses none of the request's settings.
            let settings = ConfigBag::base();
            cache.resolve_cached_identity(resolver, &components, &settings).await
        };
        IdentityFuture::new(async { tokio::spawn(load).await? })
    }
}
