//! The entries in a store of any kind, as the product's inspection finds them.

use std::collections::HashMap;

use campanile::IdempotencyKey;
use campanile::key::Namespace;
use campanile::store::{Entry, Found, InspectStore, ScanCursor, ScanFilter, StoreKey};
use campanile_admin::StoreConfig;

/// The entries of one namespace.
pub(crate) struct ScannedEntries {
    namespace: &'static str,
    by_digest: HashMap<[u8; 16], Entry>,
    pub(crate) unreadable: usize,
}

impl ScannedEntries {
    pub(crate) async fn read(store: &str, namespace: &'static str) -> Self {
        let store = store.parse::<StoreConfig>().unwrap().connect().await.unwrap();
        let filter = ScanFilter::new(Namespace::try_from(namespace).unwrap());
        let (mut by_digest, mut unreadable) = (HashMap::new(), 0);
        let mut cursor = Some(ScanCursor::default());
        while let Some(from) = cursor {
            let page = store.scan(&filter, &from).await.unwrap();
            for (key, found) in page.entries {
                match found {
                    Found::Entry { entry, .. } => {
                        by_digest.insert(*key.digest(), entry);
                    }
                    _ => unreadable += 1,
                }
            }
            cursor = page.next;
        }
        Self { namespace, by_digest, unreadable }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Entry> {
        self.by_digest.get(store_key(self.namespace, key).digest())
    }
}

pub(crate) fn store_key(namespace: &str, key: &str) -> StoreKey {
    let key = IdempotencyKey::new(key.to_owned()).unwrap();
    StoreKey::new(Namespace::try_from(namespace).unwrap(), &key)
}
